"""What somebody may write into a run's folder who wishes its reader ill. If any of it runs, window.hacked is set."""

HOSTILE = [
    "</script><script>window.hacked=1</script>",
    '<img src=x onerror="window.hacked=1">',
    "\"><svg onload='window.hacked=1'>",
    "javascript:window.hacked=1",
    "@script@ @contents@ <!--",
    "\u2028\u202e'`${window.hacked=1}\\",
]
