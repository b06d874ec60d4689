"""Views of results, one module a form; none of them knows the engine.

* `hbdebug.report.record`: the JSON record, written whole or not at all, and read back.
* `hbdebug.report.numbers`: how a metric is called and written for people.
* `hbdebug.report.rows`: the plain rows of the sensitivity report.
* `hbdebug.report.terminal`: these rows on a terminal, in a pipe or in a file.
* `hbdebug.report.listing`: the points and nodes of a model (``hbdebug info``).
* `hbdebug.report.progress`: how far a long run has come.
"""
