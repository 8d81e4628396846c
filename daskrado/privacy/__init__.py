"""Privacy: events and their composition, the budget ledger, and exact discrete noise.

* ``events`` — what one release costs, as a frozen exact value
* ``accountant`` — what several releases cost together, by the best of the theorems
* ``composition``, ``total_loss``, ``curves`` — those theorems, the exact law of a total loss, and conversions
* ``sparse_vector`` — many threshold questions, of which only the rare answers are paid for
* ``ledger`` — the budget on disk, debited before data is read
* ``ledger_records``, ``ledger_file`` — the ledger's values, and its SQLite side
* ``local``, ``local_numbers`` — randomisers for use at the source, and their estimators
* ``noise`` — the only module that draws randomness for privacy: from OpenDP and the operating system

Import names from the modules: this index stays empty so that ``daskrado --help`` loads neither NumPy nor OpenDP.
"""
