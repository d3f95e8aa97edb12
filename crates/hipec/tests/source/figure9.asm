hipec 1

event Init
    Page     page
    Int      IndexLevel = 0
    Int      Indicator = 0
    System   FaultedAddress
    Queues   _queues[256]
    QueueRef _queue1
    Int      _25 = 25
    Int      _1 = 1
    Int      _0 = 0

event PageFault
    FindPA   page, FaultedAddress
    Pick     _queue1, _queues, IndexLevel
    EmptQ    _queue1
    Jump     w5
w5:
    Set      page, REFERENCE, RESET
    Pick     _queue1, _queues, IndexLevel
    EnQueue  page, _queue1, TAIL
    Return

event Replace
    Arith    Indicator = _25
w2:
    Pick     _queue1, _queues, Indicator
    EmptQ    _queue1
    Jump     w9
    Arith    Indicator -= _1
    Comp     Indicator < _0
    Jump     w2
    Return
w9:
    Pick     _queue1, _queues, Indicator
    DeQueue  page, _queue1, HEAD
    Ref      page
    Jump     w17
    Set      page, REFERENCE, RESET
    Pick     _queue1, _queues, Indicator
    EnQueue  page, _queue1, TAIL
    Jump     w9
w17:
    Mod      page
    Jump     w20
    Flush    page
w20:
    Release  page
    Return
