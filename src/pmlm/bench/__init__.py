"""Side-by-side timings, and plots of what runs measured."""
