"""Experiments: variants of the pipeline over several seeds, each one command.

python -m experiments loop_works                 run what is missing, then write its page
python -m experiments loop_works --seeds 10,11   only these seeds
python -m experiments loop_works --page          write the page from what has run

params/NAME.yaml     question, budget, seeds and variants of an experiment
descriptions         reads and checks them
sweep                the Prefect flow that runs variants and seeds one after another
records              what is kept of a run, in docs/results/data/NAME
statistics           spreads over seeds, paired differences, fits of gold against KL
pages                docs/results/NAME.md with its plot, and README's table
"""
