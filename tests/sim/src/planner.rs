//! The controllers: keys are woken by changes, looked at one after the other, and their plans proposed.

use std::time::Duration;

use warren_core::{Liveness, Plan, reap, reconcile_replicated, schedule};
use warren_types::ServiceId;

use crate::manager::Waiting;
use crate::world::{Event, World};

/// One thing to look at again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key {
    Replicas(ServiceId),
    Reap(ServiceId),
    Schedule,
    Liveness,
}

impl World {
    pub(crate) fn wake_service(&mut self, id: ServiceId) {
        for key in [Key::Replicas(id), Key::Reap(id), Key::Schedule] {
            self.wake_key(key);
        }
    }

    pub(crate) fn wake_all(&mut self) {
        let services: Vec<_> = self.state().map(|s| s.services().map(|s| s.id).collect()).unwrap_or_default();
        services.into_iter().for_each(|id| self.wake_service(id));
        self.wake_key(Key::Schedule);
        self.wake_key(Key::Liveness);
    }

    fn wake_key(&mut self, key: Key) {
        let Some(run) = &mut self.manager.run else { return };
        let boot = run.boot;
        // Equal keys collapse; the earlier moment is not moved forward, which only makes things late.
        if run.woken.insert(key) {
            self.soon(Event::Plan { boot, key });
        }
    }

    pub(crate) fn plan(&mut self, boot: u64, key: Key) {
        let (now, elapsed) = (self.time(), Duration::from_millis(self.now));
        let Some(run) = self.manager.run.as_mut().filter(|run| run.boot == boot) else { return };
        run.woken.remove(&key);
        if !run.may_plan {
            return;
        }
        let plan = match key {
            Key::Replicas(id) => reconcile_replicated(&run.state, &id, now),
            Key::Reap(id) => reap(&run.state, &id),
            Key::Schedule => {
                let placement = schedule(&run.state, now);
                let commands = placement.command(&run.state, now).into_iter().collect();
                Plan { commands, recheck_after: placement.recheck_after }
            }
            Key::Liveness => {
                let liveness = run.liveness.get_or_insert_with(|| Liveness::start(&run.state, elapsed));
                let judgement = liveness.judge(&run.state, elapsed);
                let recheck_after = Some(Duration::from_secs(1));
                Plan { commands: judgement.commands(&run.state, now), recheck_after }
            }
        };
        for command in plan.commands {
            self.propose(command, Waiting::Planner);
        }
        let woken = |run: &mut crate::manager::Run| run.woken.insert(key);
        if let Some(after) = plan.recheck_after.filter(|_| self.manager.run.as_mut().is_some_and(woken)) {
            let after = u64::try_from(after.as_millis()).unwrap_or(u64::MAX).max(1);
            self.after(after, Event::Plan { boot, key });
        }
    }
}
