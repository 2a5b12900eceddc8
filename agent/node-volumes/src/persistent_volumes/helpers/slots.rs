//! Bounds on the programs that run at the same time. More wait for their turn, in the order in which they came; a namespace waits for its
//! own programs first, and so takes no more than its share of the queue of the node.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use agent_volume::disk::ProgramRun;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Most programs of one name that run at a time.
pub const RUNNING_MAX: usize = 64;
/// Of these, programs for the pods of one namespace.
pub const RUNNING_OF_NAMESPACE_MAX: usize = 16;

/// Programs that are counted together: their name, whether they end what others wait for, and their namespace or `None` for all.
type Counted = (String, bool, Option<String>);

/// Turns of programs.
#[derive(Debug, Default)]
pub struct Slots {
    semaphores: Mutex<BTreeMap<Counted, Arc<Semaphore>>>,
}

/// The turn of a program, until this is dropped.
#[derive(Debug)]
pub struct Slot {
    _of_namespace: Option<OwnedSemaphorePermit>,
    _of_node: Option<OwnedSemaphorePermit>,
}

impl Slots {
    /// Waits for the turn of a program. Cancel safe: who is dropped has left both queues.
    pub async fn take(&self, run: &ProgramRun) -> Slot {
        let of_namespace = if run.namespace.is_empty() {
            None
        } else {
            let own = self.semaphore(run, Some(run.namespace.clone()), RUNNING_OF_NAMESPACE_MAX);
            // Semaphores are never closed.
            own.acquire_owned().await.ok()
        };
        let of_node = self.semaphore(run, None, RUNNING_MAX).acquire_owned().await.ok();
        Slot { _of_namespace: of_namespace, _of_node: of_node }
    }

    fn semaphore(&self, run: &ProgramRun, namespace: Option<String>, max: usize) -> Arc<Semaphore> {
        let mut semaphores = self.semaphores.lock().unwrap_or_else(PoisonError::into_inner);
        // Permits and those who wait refer to their semaphore.
        semaphores.retain(|_, semaphore| Arc::strong_count(semaphore) > 1);
        let counted = (run.program.clone(), run.forced, namespace);
        semaphores.entry(counted).or_insert_with(|| Arc::new(Semaphore::new(max))).clone()
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    fn run(namespace: &str) -> ProgramRun {
        ProgramRun::new("umount", &["/x"]).for_namespace(namespace)
    }

    #[test]
    fn a_namespace_has_its_share_of_what_runs_and_waits() {
        let slots = Slots::default();
        let now = |run: &ProgramRun| slots.take(run).now_or_never();
        let mut own: Vec<Slot> = std::iter::from_fn(|| now(&run("a"))).collect();
        assert_eq!(own.len(), RUNNING_OF_NAMESPACE_MAX);
        let (one, two) = (run("a"), run("a"));
        let (mut first, mut second) = (Box::pin(slots.take(&one)), Box::pin(slots.take(&two)));
        assert!((&mut first).now_or_never().is_none() && (&mut second).now_or_never().is_none());
        let force = ProgramRun { forced: true, ..run("a") };
        assert!(now(&force).is_some() && now(&run("b")).is_some() && now(&run("")).is_some());
        own.pop();
        assert!((&mut second).now_or_never().is_none(), "the first one comes first");
        drop(first);
        let second = (&mut second).now_or_never();
        assert!(second.is_some(), "one that was dropped takes no turn");
        assert!(now(&run("a")).is_none());
    }

    #[test]
    fn all_namespaces_together_are_bounded_and_leave_nothing_behind() {
        let slots = Slots::default();
        let names = (0..2 * RUNNING_MAX).map(|number| run(&number.to_string()));
        let running: Vec<Slot> = names.filter_map(|run| slots.take(&run).now_or_never()).collect();
        assert_eq!(running.len(), RUNNING_MAX);
        drop(running);
        assert!(slots.take(&run("")).now_or_never().is_some());
        assert_eq!(slots.semaphores.lock().unwrap().len(), 1);
    }
}
