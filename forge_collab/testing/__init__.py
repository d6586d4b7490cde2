"""Published for whoever writes a transport: the contract suite and transports for tests.

- ``contract``  the suite: subclass `TransportContract` and give it a way to make clients
- ``memory``    MemoryTransport: a store in this process, shared by its clients
- ``faulty``    FaultyTransport: wraps any transport; loses answers, delays, conflicts, by script
- ``clocks``    a clock that a test moves
"""
