; CLOCK: the hand is the queue's head; a page with its bit set goes round once more.
hipec 1

event Init
    Queue    circle
    Page     page
    System   FaultedPage

event PageFault
    EnQueue  FaultedPage, circle, TAIL
    Return

event Replace
next:
    DeQueue  page, circle, HEAD
    Ref      page
    Jump     leave                        ; taken if the bit was not set
    Set      page, REFERENCE, RESET
    EnQueue  page, circle, TAIL
    Jump     next
leave:
    Return   page
