"""Automations of Prefect's server that are ours: made once, and changed only where they differ."""

from prefect.client.orchestration import SyncPrefectClient
from prefect.events import AutomationCore


def register(client: SyncPrefectClient, wanted: AutomationCore) -> None:
    """Have the server keep one automation like this under its name, on or off as people left it.

    One that is like this already is not touched: a change would make the server forget what it
    has seen, and so a run that has just gone silent.
    """
    known = client.read_automations_by_name(wanted.name)
    for spare in known[1:]:
        client.delete_automation(spare.id)
    if not known:
        client.create_automation(wanted)
    elif _content(known[0]) != _content(wanted):
        wanted = wanted.model_copy(update={"enabled": known[0].enabled})
        client.update_automation(known[0].id, wanted)


def remove(client: SyncPrefectClient, name: str) -> None:
    """Have the server keep no automation of this name."""
    for known in client.read_automations_by_name(name):
        client.delete_automation(known.id)


def _content(automation: AutomationCore) -> object:
    """What it does, and when. The server adds an id, and its defaults."""
    return automation.description, automation.trigger, automation.actions
