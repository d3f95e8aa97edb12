; LRU-2: the page whose second last reference is oldest leaves, pages referenced once before all
; others. A page's own integers remember, also while it is away: 0 the time of its last reference,
; 1 of the one before (0: there was none), 2 whether the last one is a fetch ahead of need.
hipec 1

event Init
    Queue    once                         ; in order of the last reference
    Ordered  twice[1]                     ; in order of the second last
    Int      last
    Int      before
    Int      is_unseen
    Int      zero
    Page     page
    System   FaultedPage
    System   Prefetched
    System   Now

event PageFault
    Call     remember
    Store    FaultedPage, 2, Prefetched
    Return

event Reference
    Load     is_unseen, FaultedPage, 2
    Comp     is_unseen == zero
    Jump     first_seen
    Call     remember
    Return
first_seen:                               ; moves the fetch to now
    Store    FaultedPage, 2, zero
    Store    FaultedPage, 0, Now
    Call     rank
    Return

event Replace
    EmptQ    once
    Jump     seen_once
    DeQueue  page, twice, HEAD
    Return   page
seen_once:
    DeQueue  page, once, HEAD
    Return   page

event 3 remember
    Load     last, FaultedPage, 0
    Store    FaultedPage, 1, last
    Store    FaultedPage, 0, Now
    Call     rank
    Return

event 4 rank
    Load     before, FaultedPage, 1
    Comp     before == zero
    Jump     again
    EnQueue  FaultedPage, once, TAIL
    Return
again:
    EnQueue  FaultedPage, twice, HEAD     ; finds its own place
    Return
