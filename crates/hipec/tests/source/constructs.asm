hipec 1

event Init
    Int      i = -4
    Int      j = 6
    Int      mask = 255
    Int      done = 0
    Queues   level[26]
    Ordered  ranked[0]
    Queue    plain
    Page     page
    System   FaultedPage
    Int      _1 = 1
    Int      _int1 = 0
    Int      _0 = 0
    Int      _3 = 3
    Int      i_local = 0
    Page     other
    Int      _26 = 26
    QueueRef _queue1
    Int      _7 = 7
    System   FaultedAddress
    Int      _8 = 8
    Int      _Count_all_i_local = 0
    System   Resident

event PageFault
    Copy     page, FaultedPage
    Store    page, 0, _1
    Load     _int1, page, 0
    Arith    _int1++
    Store    page, 0, _int1
    Load     _int1, page, 1
    Arith    _int1 += j
    Store    page, 1, _int1
    EnQueue  page, ranked, TAIL
    Comp     done == _0
    Jump     w18
    Comp     i >= _3
    Jump     w16
    Mod      page
    Jump     w18
w16:
    Arith    done = _1
    Jump     w29
w18:
    InQ      page, plain
    Jump     w24
    Arith    _int1 = _0
    Arith    _int1 -= j
    Arith    i = _int1
    Jump     w29
w24:
    Comp     i == j
    Jump     w28
    Arith    done = _1
    Jump     w29
w28:
    Arith    done = _0
w29:
    Call     Count_all
    Call     Count_all
    Return

event Replace
    Count    i_local, ranked
    Arith    i = _0
w3:
    Comp     i < _26
    Jump     w17
    Pick     _queue1, level, i
    EmptQ    _queue1
    Jump     w9
    Jump     w15
w9:
    Pick     _queue1, level, i
    DeQueue  page, _queue1, TAIL
    Copy     other, page
    Has      other
    Jump     w15
    Jump     w17
w15:
    Arith    i++
    Jump     w3
w17:
    Comp     i_local != _0
    Jump     w24
    Arith    i_local -= _1
    Arith    _int1 = j
    Arith    _int1 -= i
    Arith    i = _int1
    Jump     w17
w24:
    DeQueue  page, ranked, HEAD
    Has      page
    Jump     w28
    Jump     w29
w28:
    Return
w29:
    Ref      page
    Jump     w32
    Jump     w24
w32:
    FindVA   _int1, page
    Map      page, _int1
    UnMap    page
    Arith    _int1 = mask
    Arith    _int1 %= _7
    Request  _int1
    Jump     w40
    Jump     w32
w40:
    Request  _1
    Jump     w42
w42:
    Arith    _int1 = FaultedAddress
    Arith    _int1 += _1
    Prefetch _int1, _8
    Return   page

event 3 Count_all
    Arith    _Count_all_i_local = Resident
w2:
    Arith    _Count_all_i_local--
    Comp     _Count_all_i_local <= _0
    Jump     w2
    Return
