from fedpac.cli import main

main()
