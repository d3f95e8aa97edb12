; LRU: one queue in order of last reference, oldest at the head.
hipec 1

event Init
    Queue    order
    Page     page
    System   FaultedPage

event PageFault
    EnQueue  FaultedPage, order, TAIL
    Return

event Reference
    EnQueue  FaultedPage, order, TAIL     ; a page on a queue moves
    Return

event Replace
    DeQueue  page, order, HEAD
    Return   page
