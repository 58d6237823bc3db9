"""The agent: what of spyreprof runs inside a recorded program.

Standard library only, Python 3.10 and later. Nothing here may raise into the program, print, or import a
package that the program did not import itself.
"""
