"""Alternative implementations of mechanisms, one file each.

Optional packages are imported only here.
"""
