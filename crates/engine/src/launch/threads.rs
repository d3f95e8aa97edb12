//! The threads of a run's manager.

use super::Options;
use super::holder::Holder;
use crate::manager::Manager;
use crate::manager::awake::{self, Keeper};
use crate::manager::crew::spawn;
use pagekeeper_sys::Errno;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Most threads that serve faults beside the event thread, and fetch ahead: so many pages can be waited
/// for at a time. They are started when they are needed.
const WORKERS: usize = 128;
/// How often dirty pages are written back, so that little is lost when the machine dies.
const WRITE_BACK_EVERY: Duration = Duration::from_secs(5);
/// A call into storage or the kernel that takes longer is reported.
const STUCK_AFTER: Duration = Duration::from_secs(10);

/// What the manager needs once it manages something.
pub(super) fn set_crew(manager: &Arc<Manager>, holder: &Arc<Holder>, stop: &Arc<AtomicBool>) {
    let (weak, holder, stop) = (Arc::downgrade(manager), holder.clone(), stop.clone());
    manager.crew.set(Box::new(move |threads| {
        let manager = weak.upgrade().ok_or(Errno::SRCH)?;
        let (m, s) = (manager.clone(), stop.clone());
        threads.push(spawn("pk-events", move || m.event_loop(&|| s.load(Ordering::SeqCst)))?);
        let worker = move || {
            let m = weak.upgrade()?;
            spawn("pk-worker", move || m.work_loop()).ok()
        };
        manager.workers.hire(WORKERS, Box::new(worker))?;
        let (m, s) = (manager.clone(), stop.clone());
        threads.push(spawn("pk-writer", move || write_behind(&m, &s))?);
        if manager.room().is_some() {
            let (m, s) = (manager.clone(), stop.clone());
            threads
                .push(spawn("pk-headroom", move || m.keep_headroom(|| s.load(Ordering::SeqCst)))?);
        }
        let m = manager.clone();
        threads.push(spawn("pk-teller", move || tell(&m, &holder, &stop))?);
        // It ends with the process, since nothing wakes a read.
        drop(spawn("pk-watch", move || manager.watch_loop())?);
        Ok(())
    }));
}

/// Ends the standby when memory gets short.
pub(super) fn watch_standby(
    manager: &Arc<Manager>,
    holder: &Arc<Holder>,
    stop: &Arc<AtomicBool>,
    options: &Options,
) -> impl FnOnce() + Send + 'static {
    let (m, s, h) = (manager.clone(), stop.clone(), holder.clone());
    let (policy, seed) = (options.policy.clone(), options.seed);
    move || {
        // What the kernel's counts show has not to be found out again.
        let looped = || {
            if let Ok(policy) = policy.with("start", "mru") {
                let _ = m.engine.replace_policy(&policy, seed);
            }
        };
        m.watch_standby(looped, |inode| h.interject(inode), || s.load(Ordering::SeqCst));
    }
}

/// Writes dirty pages back from time to time, lets go of what nobody uses, and keeps processors awake.
fn write_behind(manager: &Manager, stop: &AtomicBool) {
    let mut last = Instant::now();
    let mut keeper = Keeper::default();
    loop {
        std::thread::park_timeout(awake::LOOK_EVERY);
        // The run's end waits for this thread.
        if stop.load(Ordering::SeqCst) {
            return;
        }
        keeper.look(manager.waits.so_far());
        manager.let_go();
        manager.reserve.refill();
        manager.look_at_unwatched();
        manager.engine.look_at_overdue();
        if last.elapsed() >= WRITE_BACK_EVERY {
            let _ = manager.engine.write_behind();
            last = Instant::now();
        }
    }
}

/// Tells people what goes wrong. It uses no file of theirs, so that it can name what is stuck,
/// [`write_behind`] among them.
fn tell(manager: &Manager, holder: &Holder, stop: &AtomicBool) {
    let mut told = None::<Instant>;
    let (mut alone, mut is_crowded) = (false, false);
    while !stop.load(Ordering::SeqCst) {
        std::thread::park_timeout(Duration::from_millis(100));
        manager.look_after_events();
        if !alone && holder.lost() {
            alone = true;
            eprintln!(
                "pagekeeper: the holder process was ended; if this one is too, what is not synced \
                 is lost"
            );
        }
        if let Some(complaint) = manager.scratch().and_then(|scratch| scratch.complaint()) {
            eprintln!("pagekeeper: {complaint}");
        }
        if let Some(complaint) = manager.waiting.complaint(Instant::now()) {
            eprintln!("pagekeeper: {complaint}");
        }
        let stuck = manager.engine.stuck(STUCK_AFTER);
        if !stuck.is_empty() && told.is_none_or(|at| at.elapsed() >= STUCK_AFTER) {
            told = Some(Instant::now());
            for stuck in stuck {
                eprintln!("pagekeeper: {stuck}");
            }
        }
        if !is_crowded && let Some(crowded) = manager.engine.crowded() {
            is_crowded = true;
            eprintln!("pagekeeper: {crowded}");
        }
        if let Some(revoked) = manager.engine.look_inside() {
            eprintln!("pagekeeper: {revoked}");
        }
    }
}
