hipec 1

event Init
    Queue    active_queue
    Int      active_count = 0
    Queue    inactive_queue
    Int      inactive_count = 0
    Int      reserver_free_target = 1
    Int      free_target = 8
    Int      inactive_target = 0
    Page     page
    System   FaultedAddress
    Int      _2 = 2
    Int      _3 = 3

event PageFault
    FindPA   page, FaultedAddress
    Arith    _free_count--
    EnQueue  page, active_queue, TAIL
    Arith    active_count++
    Return

event Replace
w1:
    Arith    inactive_target = active_count
    Arith    inactive_target += inactive_count
    Arith    inactive_target *= _2
    Arith    inactive_target /= _3
w5:
    Comp     inactive_count < inactive_target
    Jump     w13
    DeQueue  page, active_queue, HEAD
    Arith    active_count--
    Set      page, REFERENCE, RESET
    EnQueue  page, inactive_queue, TAIL
    Arith    inactive_count++
    Jump     w5
w13:
    Comp     _free_count < free_target
    Jump     w28
    DeQueue  page, inactive_queue, HEAD
    Arith    inactive_count--
    Ref      page
    Jump     w22
    EnQueue  page, active_queue, TAIL
    Arith    active_count++
    Jump     w1
w22:
    Mod      page
    Jump     w25
    Flush    page
w25:
    EnQueue  page, _free_queue, HEAD
    Arith    _free_count++
    Jump     w1
w28:
    Return
