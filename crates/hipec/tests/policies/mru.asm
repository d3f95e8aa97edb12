; MRU: the page referenced last leaves. A page fetched ahead was not used yet: it waits on a queue
; of its own until it is referenced, or until more than 1/32 of the frames wait.
hipec 1

event Init
    Queue    used
    Queue    ahead
    Int      waiting
    Int      most
    Int      share = 32
    Page     page
    System   FaultedPage
    System   Prefetched
    System   Frames

event PageFault
    Logic    ! Prefetched
    Jump     fetched_ahead
    EnQueue  FaultedPage, used, TAIL
    Return
fetched_ahead:
    EnQueue  FaultedPage, ahead, TAIL
    Call     count_as_used
    Return

event Reference
    EnQueue  FaultedPage, used, TAIL
    Return

event Replace
    Call     count_as_used                ; the frames may have become fewer
    EmptQ    used
    Jump     newest
    DeQueue  page, ahead, HEAD
    Return   page
newest:
    DeQueue  page, used, TAIL
    Return   page

event 3 count_as_used
    Arith    most = Frames
    Arith    most /= share
next:
    Count    waiting, ahead
    Comp     waiting > most
    Jump     done
    DeQueue  page, ahead, HEAD
    EnQueue  page, used, TAIL
    Jump     next
done:
    Return
