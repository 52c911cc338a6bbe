"""The page that people look at: one file for a report, the same page live while a run goes on.

contents.py finds out what there is to show, as plain values; assets/ draws it in the browser.
"""
