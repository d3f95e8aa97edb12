//! How a program's code is cut into blocks, and what they cost.
use crate::image::Image;
use crate::program::{Command, EventNumber};

/// How a program's code is cut into blocks, by places in the code.
pub(super) struct Layout {
    /// Where a block begins.
    pub(super) is_leader: Vec<bool>,
    /// Leaders at which the interpreter may hand over, and the budget is looked at: every loop has
    /// one.
    pub(super) entries: Vec<bool>,
    /// Of entries: the most that is charged from there on until another, or the event's end.
    pub(super) needs: Vec<i64>,
    /// Leaders that a Call goes back to.
    pub(super) is_return: Vec<bool>,
    /// Whether a Jump goes there.
    pub(super) is_jumped_to: Vec<bool>,
    /// Whether a test may have been true since the last Jump.
    pub(super) may_be_true: Vec<bool>,
    /// Where an event begins.
    pub(super) is_first: Vec<bool>,
    /// Where Calls of each event go back to.
    pub(super) returns: Vec<Vec<u32>>,
    /// The event of each place.
    pub(super) events: Vec<EventNumber>,
}

/// Whether the interpreter runs it always.
pub(super) fn is_interpreted(image: &Image, command: Command) -> bool {
    match command {
        Command::DeQueue { queue, .. } | Command::EnQueue { queue, .. } => {
            image.is_ordered[usize::from(queue.0)]
        }
        Command::Request { .. }
        | Command::Flush { .. }
        | Command::FindVA { .. }
        | Command::FindPA { .. }
        | Command::Map { .. }
        | Command::UnMap { .. }
        | Command::Prefetch { .. } => true,
        _ => false,
    }
}

impl Layout {
    pub(super) fn of(image: &Image) -> Self {
        let len = image.code.len();
        let mut layout = Self {
            is_leader: vec![false; len],
            entries: vec![false; len],
            needs: vec![0; len],
            is_return: vec![false; len],
            is_jumped_to: vec![false; len],
            may_be_true: vec![false; len],
            is_first: vec![false; len],
            returns: vec![Vec::new(); 256],
            events: (0..len as u32).map(|at| image.spot(at).0).collect(),
        };
        for entry in image.entries.iter().filter(|entry| **entry != u32::MAX) {
            let at = *entry as usize;
            layout.is_first[at] = true;
            layout.is_leader[at] = true;
            layout.entries[at] = true;
        }
        for (at, step) in image.code.iter().enumerate() {
            let next = at + 1;
            match step.command {
                Command::Jump { to } => {
                    let to = usize::from(to);
                    layout.is_leader[to] = true;
                    layout.is_jumped_to[to] = true;
                    // Loops, so that one that the interpreter has a part of comes back.
                    layout.entries[to] |= to <= at;
                }
                Command::Call { event } if next < len => {
                    layout.returns[usize::from(event.0)].push(next as u32);
                    layout.is_return[next] = true;
                }
                Command::Return { .. } => {}
                command if is_interpreted(image, command) && next < len => {
                    layout.entries[next] = true;
                }
                _ => continue,
            }
            if next < len {
                layout.is_leader[next] = true;
            }
        }
        for at in 1..len {
            let before = image.code[at - 1].command;
            layout.may_be_true[at] = !layout.is_first[at]
                && match before {
                    Command::Jump { .. } | Command::Call { .. } | Command::Return { .. } => false,
                    before => before.is_test() || layout.may_be_true[at - 1],
                };
        }
        let mut known = vec![None; len];
        for at in (0..len).filter(|at| layout.entries[*at]) {
            layout.needs[at] = layout.need(image, at, &mut known);
        }
        layout
    }

    /// The most that is charged from a leader on until an entry, or the event's end.
    fn need(&self, image: &Image, leader: usize, known: &mut [Option<i64>]) -> i64 {
        if let Some(need) = known[leader] {
            return need;
        }
        // No cycle is without an entry: a loop jumps back, and an event that is Called begins.
        let mut behind = |at: usize| match self.entries.get(at) {
            Some(false) => self.need(image, at, known),
            _ => 0,
        };
        let last = (leader..).find(|at| self.ends(image, *at)).unwrap_or(leader);
        let most = match image.code[last].command {
            Command::Jump { to } => behind(to.into()).max(behind(last + 1)),
            Command::Call { .. } => 0,
            Command::Return { .. } => {
                let returns = &self.returns[usize::from(self.events[last].0)];
                returns.iter().map(|at| behind(*at as usize)).max().unwrap_or(0)
            }
            command if is_interpreted(image, command) => 0,
            _ => behind(last + 1),
        };
        let need = self.cost(image, leader) + most;
        known[leader] = Some(need);
        need
    }

    /// An event, and those that it Calls.
    pub(super) fn reached(&self, image: &Image, root: EventNumber) -> Vec<EventNumber> {
        let mut reached = vec![root];
        let mut place = 0;
        while let Some(from) = reached.get(place).copied() {
            for (step, event) in std::iter::zip(&image.code, &self.events) {
                if let Command::Call { event: called } = step.command
                    && *event == from
                    && !reached.contains(&called)
                {
                    reached.push(called);
                }
            }
            place += 1;
        }
        reached
    }

    /// Whether any event Calls another.
    pub(super) fn calls(&self) -> bool {
        self.returns.iter().any(|returns| !returns.is_empty())
    }

    /// Whether the command is the last of its block.
    fn ends(&self, image: &Image, at: usize) -> bool {
        self.is_leader.get(at + 1).is_none_or(|is_leader| *is_leader)
            || matches!(
                image.code[at].command,
                Command::Jump { .. } | Command::Call { .. } | Command::Return { .. }
            )
    }

    /// What a block costs: its commands up to one for the interpreter.
    pub(super) fn cost(&self, image: &Image, leader: usize) -> i64 {
        let mut cost = 0;
        for (at, step) in image.code.iter().enumerate().skip(leader) {
            if is_interpreted(image, step.command) {
                break;
            }
            cost += i64::from(step.cost);
            if self.ends(image, at) {
                break;
            }
        }
        cost
    }
}
