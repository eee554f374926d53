"""What each error code means and what to do."""

CODES = {
    "HB-214": "A policy file is wrong. The text names file, line, key, value and rule. The policy "
    "that was in force stays in force. `hybrid policy explain` lists every key.",
    "HB-403": "Your token may not do that. A user acts on own jobs, an operator on all jobs and "
    "nodes, an admin on tokens and policy. `hybrid token create --role …` makes another.",
    "HB-404": "There is nothing of that name. The hint names the command that lists what there is.",
    "HB-409": "What you want to end is in use. Stop the job first.",
    "HB-503": "The database is locked by another program. Nothing was written; repeat the call. "
    "If it stays so, look for a program that holds the database file open.",
}
