; FIFO2: first in, first out with second chance, after Mach and Figures 3 and 4 of the HiPEC paper.
; Two thirds of the resident pages are kept inactive; a reference there saves a page.
hipec 1

event Init
    Queue    active
    Queue    inactive
    Int      active_count
    Int      inactive_count
    Int      inactive_target
    Int      one = 1
    Int      two = 2
    Int      three = 3
    Page     page
    System   FaultedPage
    System   Prefetched

event PageFault
    Logic    ! Prefetched
    Jump     fetched_ahead
    EnQueue  FaultedPage, active, TAIL
    Return
fetched_ahead:                            ; a use will save it
    EnQueue  FaultedPage, inactive, TAIL
    Return

event Replace
    Count    active_count, active
    Count    inactive_count, inactive
    Arith    inactive_target = active_count
    Arith    inactive_target += inactive_count
    Arith    inactive_target *= two
    Arith    inactive_target /= three
    Comp     inactive_target < one
    Jump     fill
    Arith    inactive_target = one
fill:
    Comp     inactive_count < inactive_target
    Jump     oldest
    DeQueue  page, active, HEAD
    Has      page
    Jump     oldest
    Set      page, REFERENCE, RESET
    EnQueue  page, inactive, TAIL
    Arith    inactive_count++
    Jump     fill
oldest:
    DeQueue  page, inactive, HEAD
    Ref      page
    Jump     leave
    Set      page, REFERENCE, RESET
    EnQueue  page, active, TAIL
    Arith    inactive_count--
    Jump     fill
leave:
    Return   page
