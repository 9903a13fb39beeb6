"""`mep train`: pretrains on the ranks that a launcher started."""

import argparse

from megatron_mep.commands.arguments import Verbs, add_run, add_verb


def add_to(verbs: Verbs) -> None:
    """Adds the verb."""
    add_run(add_verb(verbs, "train", _train, "pretrain, from the latest checkpoint where there is one"))


def _train(options: argparse.Namespace) -> None:
    from megatron_mep.training.signals import Signals

    # from here on, since what is imported takes its time
    with Signals() as signals:
        from megatron_mep.pretrain import pretrain
        from megatron_mep.run import load_run

        pretrain(load_run(options.run, options.overrides), signals)
