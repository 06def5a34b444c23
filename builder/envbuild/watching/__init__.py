"""What a running training shows from outside, and what is wrong with it: series in, alerts out.

``proc`` reads the kernel's figures and ``lines`` the training's own words; everything else is pure.
"""
