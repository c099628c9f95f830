"""Pure rules: stdlib only, no clock, no I/O, no asyncio, no Django. Time is an argument."""
