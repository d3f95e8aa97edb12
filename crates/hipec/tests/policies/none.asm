; Gives no page: the pool's own order decides.
hipec 1

event Init
    Queue    pages
    System   FaultedPage

event PageFault
    EnQueue  FaultedPage, pages, TAIL
    Return

event Replace
    Return
