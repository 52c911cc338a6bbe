"""python -m fedpac"""

from fedpac.cli import main

main()
