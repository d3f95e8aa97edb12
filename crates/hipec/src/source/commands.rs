//! An event's commands while they are written: labels, and what can be reached.

use std::ops::Range;

use crate::program::Command;

/// Jumps in a row that are made one: some go in circles.
const CHAIN_MAX: usize = 32;

/// A place that jumps lead to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Label(usize);

/// The commands of one event.
///
/// Jump is taken unless a test was true since the last one, so each test that is written is
/// followed by its Jump, and every other Jump is always taken.
#[derive(Debug)]
pub(super) struct Commands {
    list: Vec<(Command, Range<usize>)>,
    /// For each Jump in `list`, by its place, where it leads.
    jumps: Vec<(usize, Label)>,
    labels: Vec<Option<usize>>,
    /// Whether a jump that was written leads to the label.
    is_used: Vec<bool>,
    /// Whether what is written next can be reached.
    reachable: bool,
    /// The part of the text that commands are written for.
    pub(super) span: Range<usize>,
}

impl Commands {
    pub(super) fn new(span: Range<usize>) -> Self {
        Self {
            list: Vec::new(),
            jumps: Vec::new(),
            labels: Vec::new(),
            is_used: Vec::new(),
            reachable: true,
            span,
        }
    }

    /// A label that stands nowhere yet.
    pub(super) fn label(&mut self) -> Label {
        self.labels.push(None);
        self.is_used.push(false);
        Label(self.labels.len() - 1)
    }

    /// Puts the label here.
    pub(super) fn place(&mut self, label: Label) {
        self.labels[label.0] = Some(self.list.len());
        self.reachable |= self.is_used[label.0];
    }

    /// Puts a label here that a later jump may lead to.
    pub(super) fn place_reachable(&mut self, label: Label) {
        self.place(label);
        self.reachable = true;
    }

    /// Writes a command that is neither a test nor a jump.
    pub(super) fn push(&mut self, command: Command) {
        if self.reachable {
            self.list.push((command, self.span.clone()));
            self.reachable = !matches!(command, Command::Return { .. });
        }
    }

    /// Always goes to the label.
    pub(super) fn jump(&mut self, label: Label) {
        if self.reachable {
            self.push_jump(label);
            self.reachable = false;
        }
    }

    /// Goes to the label if the test is false.
    pub(super) fn jump_unless(&mut self, test: Command, label: Label) {
        if self.reachable {
            self.list.push((test, self.span.clone()));
            self.push_jump(label);
        }
    }

    fn push_jump(&mut self, label: Label) {
        self.jumps.push((self.list.len(), label));
        self.is_used[label.0] = true;
        self.list.push((Command::Jump { to: 0 }, self.span.clone()));
    }

    /// The commands, ending in Return, and for each the text that it comes from. `None` if there
    /// are more than a jump can reach.
    pub(super) fn finish(mut self, end: Range<usize>) -> Option<(Vec<Command>, Vec<Range<usize>>)> {
        self.span = end;
        self.push(Command::Return { page: None });
        let mut to: Vec<Option<usize>> = vec![None; self.list.len()];
        for &(at, label) in &self.jumps {
            // A label behind all commands follows a Return or an endless loop: nothing leads there.
            to[at] = self.labels[label.0];
        }
        // A Jump has forgotten the test, so another one that it leads to is taken.
        for at in 0..to.len() {
            for _ in 0..CHAIN_MAX {
                match to[at].and_then(|next| to.get(next).copied().flatten()) {
                    Some(next) if to[at] != Some(next) => to[at] = Some(next),
                    _ => break,
                }
            }
        }
        let is_reached = self.reached(&to);
        let mut new_place = Vec::with_capacity(is_reached.len());
        let mut count = 0_usize;
        for reached in &is_reached {
            new_place.push(count);
            count += usize::from(*reached);
        }
        if count > crate::program::COMMANDS_MAX {
            return None;
        }
        let (mut commands, mut spans) = (Vec::new(), Vec::new());
        for (at, (command, span)) in self.list.into_iter().enumerate() {
            if is_reached[at] {
                commands.push(match to[at] {
                    // Words count from the magic one.
                    Some(to) => Command::Jump { to: u16::try_from(new_place[to] + 1).ok()? },
                    None => command,
                });
                spans.push(span);
            }
        }
        Some((commands, spans))
    }

    /// Which commands some path leads to.
    fn reached(&self, to: &[Option<usize>]) -> Vec<bool> {
        let mut is_reached = vec![false; self.list.len()];
        let mut open = vec![0];
        while let Some(at) = open.pop() {
            if at >= is_reached.len() || std::mem::replace(&mut is_reached[at], true) {
                continue;
            }
            let command = self.list[at].0;
            let is_always_taken = at == 0 || !self.list[at - 1].0.is_test();
            if let Some(to) = to[at] {
                open.push(to);
            }
            let goes_on = match command {
                Command::Return { .. } => false,
                Command::Jump { .. } => !is_always_taken,
                _ => true,
            };
            if goes_on {
                open.push(at + 1);
            }
        }
        is_reached
    }
}
