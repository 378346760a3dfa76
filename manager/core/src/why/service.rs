//! Why a service is as it is.

use std::collections::BTreeMap;

use warren_types::spec::IMAGE_NOT_ADMITTED;
use warren_types::{Service, ServiceMode, Task, TaskState};

use super::task::image_not_admitted;
use super::{Cause, Inquiry, Severity, count, listed};
use crate::reconcile::uncreated_tasks;
use crate::rollout::{Rollout, RolloutState, rollout};
use crate::state::{awaits_managers, intolerable_taints, is_final, meets_constraints};

/// The most different causes that are listed; more are counted.
const MAX_CAUSES: usize = 10;

/// Tasks with the same cause.
struct SharedCause {
    names: Vec<String>,
    cause: Cause,
}

impl<'a> Inquiry<'a> {
    /// What is desired, and what is.
    pub(super) fn service(&self, service: &'a Service) -> (String, Cause) {
        let desired = self.state.desired_tasks(service);
        let image = &service.revision.task.image;
        let wanted = match service.spec.mode {
            _ if service.removing => "no tasks: it is being removed".to_owned(),
            ServiceMode::Replicated { replicas } => format!("{} of {image}", count(replicas, "task")),
            ServiceMode::Global => format!("a task of {image} on every suitable node"),
        };
        let wanted = format!("{wanted}, revision {}", service.revision.number);
        let cause = match (service.removing, desired) {
            (true, _) => self.removing_service(service),
            (false, 0) => self.service_without_tasks(service),
            (false, desired) => self.running_service(service, desired),
        };
        (wanted, cause)
    }

    fn removing_service(&self, service: &'a Service) -> Cause {
        let held = self.state.tasks_of(&service.id).filter(|task| task.holds_resources());
        let held: Vec<&Task> = held.filter_map(|task| self.task_of(&task.id)).collect();
        let left = count(held.len() as u64, "task");
        let name = &service.spec.name;
        let cause = Cause::waiting("removing", format!("{name} is being removed; {left} left"));
        cause.since(service.updated_at).because(self.grouped(held.into_iter())).with_worst_severity()
    }

    fn service_without_tasks(&self, service: &Service) -> Cause {
        let name = &service.spec.name;
        if service.spec.mode != ServiceMode::Global {
            return Cause::ok("scaled-to-zero", format!("{name} has no tasks, as desired"))
                .since(service.updated_at)
                .action(format!("start tasks with `warren service scale {name}=1`"));
        }
        let cause = Cause::problem("no-suitable-node", format!("no node is suitable for {name}"));
        let cause = self.unsuitable_nodes(service).into_iter().fold(cause, Cause::evidence);
        cause.action("see `warren node ls`; change constraints, tolerations or the nodes")
    }

    /// How many nodes are not suitable for a global service, by reason.
    fn unsuitable_nodes(&self, service: &Service) -> Vec<String> {
        let placement = &service.revision.placement;
        let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
        for node in self.state.nodes() {
            let reason = match () {
                () if !meets_constraints(placement, node) => "do not meet its constraints",
                () if intolerable_taints(service, node).next().is_some() => {
                    "have taints that it does not tolerate"
                }
                () if node.availability != warren_types::Availability::Active => "are drained or paused",
                () => "are not READY",
            };
            *counts.entry(reason).or_default() += 1;
        }
        match counts.is_empty() {
            true => vec!["no node has joined yet".to_owned()],
            false => {
                counts.iter().map(|(reason, nodes)| format!("{} {reason}", count(*nodes, "node"))).collect()
            }
        }
    }

    fn running_service(&self, service: &'a Service, desired: u32) -> Cause {
        let name = &service.spec.name;
        let ready = self.state.task_counts(&service.id).ready;
        let mut causes = self.rollout_causes(service);
        let (by_slot, finished) = self.slots(service);
        causes.extend(self.vacancies(service, desired, &by_slot, finished));
        let mut tasks = self.grouped(by_slot.values().flatten().copied());
        let is_ok = |cause: &Cause| cause.severity == Severity::Ok && cause.code == "running";
        let running: Vec<Cause> = tasks.extract_if(.., |cause| is_ok(cause)).collect();
        causes.extend(tasks);
        let sentence = format!("{name} has {ready} of {} ready", count(desired, "task"));
        let base = match ready.saturating_add(finished) < desired {
            true => Severity::Waiting,
            false => Severity::Ok,
        };
        let root = Cause::new(base, "", sentence);
        let root = match causes.iter().any(|cause| cause.severity > Severity::Ok) || base > Severity::Ok {
            true => root.because(causes),
            false => root.because(causes).because(running),
        };
        let root = root.with_worst_severity();
        let code = match (root.severity, ready) {
            (Severity::Ok, _) => "healthy",
            (_, 0) => "no-ready-task",
            (_, ready) if ready < desired => "degraded",
            (Severity::Waiting, _) => "updating",
            (Severity::Problem, _) => "attention",
        };
        let is_reached = !service.revision.ports.is_empty() || !service.virtual_addresses.is_empty();
        let root = match ready == 0 && is_reached && finished < desired {
            true => root
                .evidence("it has no endpoint: clients of its name and of its published ports are refused"),
            false => root,
        };
        Cause { code, ..root }
    }

    /// The tasks to explain of each slot: the live ones, otherwise the newest ended one; and how many slots have ended
    /// for good.
    fn slots(&self, service: &'a Service) -> (BTreeMap<u32, Vec<&'a Task>>, u32) {
        let mut by_slot: BTreeMap<u32, Vec<&'a Task>> = BTreeMap::new();
        for task in self.state.tasks_of(&service.id).filter(|task| !task.is_surplus()) {
            let Some(task) = self.task_of(&task.id) else { continue };
            let tasks = by_slot.entry(task.slot).or_default();
            // Ordered by number, so an ended task before a newer one says nothing any more.
            tasks.retain(|earlier| earlier.is_live());
            if task.is_live() || tasks.is_empty() {
                tasks.push(task);
            }
        }
        if let Some(replicas) = service.spec.replicas() {
            by_slot
                .retain(|slot, tasks| *slot <= replicas || tasks.iter().any(|task| task.holds_resources()));
        }
        let is_over = |tasks: &&Vec<&Task>| {
            tasks
                .iter()
                .all(|task| !task.is_live() && is_final(task) && task.observed.state == TaskState::Complete)
        };
        let finished = by_slot.values().filter(is_over).count();
        (by_slot, u32::try_from(finished).unwrap_or(u32::MAX))
    }

    /// Slots without a live task that should have one.
    fn vacancies(
        &self,
        service: &Service,
        desired: u32,
        by_slot: &BTreeMap<u32, Vec<&Task>>,
        finished: u32,
    ) -> Option<Cause> {
        let name = &service.spec.name;
        let live = by_slot.values().filter(|tasks| tasks.iter().any(|task| task.is_live())).count();
        let live = u32::try_from(live).unwrap_or(u32::MAX);
        let vacant = desired.saturating_sub(live.saturating_add(finished));
        match uncreated_tasks(self.state, service) {
            0 if vacant == 0 => None,
            0 => {
                let sentence = format!("{name} waits for {} to be created", count(vacant, "task"));
                Some(Cause::waiting("no-task-yet", sentence))
            }
            more => {
                let sentence =
                    format!("the nodes have no room for {} of {name}", count(more, "further task"));
                let action = format!("add nodes, reserve less, or `warren service scale {name}=N`");
                Some(Cause::problem("no-room", sentence).action(action))
            }
        }
    }

    fn rollout_causes(&self, service: &Service) -> Vec<Cause> {
        let name = &service.spec.name;
        let Rollout { updated, total, state, stop_reason, waiting_reason, rolled_back, .. } =
            rollout(self.state, service, self.now);
        let failed_at = service.rollout.failures.last().map(|failure| failure.at);
        let mut causes = Vec::new();
        if let Some(update) = rolled_back {
            let sentence =
                format!("the update of {name} to revision {} failed and was rolled back", update.failed);
            let cause = Cause::problem("rolled-back", sentence).evidence(update.reason).action(format!(
                "see what differs with `warren service history {name}`, correct it, and update again"
            ));
            causes.push(Cause { since: failed_at, ..cause });
        }
        let cause = match (stop_reason, waiting_reason) {
            (Some(why), _) => {
                let code = match state {
                    RolloutState::RollbackPaused => "rollback-paused",
                    _ => "update-paused",
                };
                let sentence = format!(
                    "the rollout of {name} is paused after a failure: {updated} of {total} are updated"
                );
                let action = format!(
                    "correct it with `warren service update {name}`, which `--resume` continues as it is, or \
                     `warren service rollback {name}`"
                );
                Some(
                    Cause { since: failed_at, ..Cause::problem(code, sentence) }.evidence(why).action(action),
                )
            }
            (None, Some(waits)) if waits.starts_with(IMAGE_NOT_ADMITTED) => {
                let cause = image_not_admitted(name).since(service.revision.created_at);
                Some(cause.evidence(waits))
            }
            (None, Some(waits)) if awaits_managers(service) => {
                let image = &service.revision.task.image;
                let sentence = format!("managers do not know what image {image} of {name} is");
                let cause = Cause::problem("image-not-resolved", sentence).since(service.revision.created_at);
                Some(cause.evidence(waits).action(format!(
                    "check name and tag of the image, and that managers reach its registry; or go back with \
                     `warren service rollback {name}`"
                )))
            }
            (None, Some(waits)) => {
                let sentence =
                    format!("{name} is being updated: {updated} of {total} are of the current revision");
                Some(Cause::waiting("updating", sentence).since(service.revision.created_at).evidence(waits))
            }
            (None, None) => None,
        };
        causes.extend(cause);
        causes
    }

    /// The causes of tasks, those that are equal as one.
    fn grouped(&self, tasks: impl Iterator<Item = &'a Task>) -> Vec<Cause> {
        let mut groups: BTreeMap<(String, Option<String>), SharedCause> = BTreeMap::new();
        for task in tasks {
            let name = self.task_name(task);
            let cause = self.task(task);
            let general = |text: &str| text.replace(&name, "");
            let key = (general(&cause.sentence), cause.evidence.first().map(|text| general(text)));
            let shared = groups.entry(key).or_insert_with(|| SharedCause { names: Vec::new(), cause });
            shared.names.push(name);
        }
        let mut causes: Vec<Cause> = groups.into_values().map(SharedCause::merged).collect();
        causes.sort_by_key(|cause| std::cmp::Reverse(cause.severity));
        let more = causes.len().saturating_sub(MAX_CAUSES);
        if more > 0 {
            let left = causes.split_off(MAX_CAUSES);
            let worst = left.iter().map(|cause| cause.severity).max().unwrap_or(Severity::Ok);
            causes.push(Cause::new(
                worst,
                "more",
                format!("{more} more tasks or groups of tasks, see `warren service ps`"),
            ));
        }
        causes
    }
}

impl SharedCause {
    fn merged(self) -> Cause {
        match self.names.get(1..) {
            None | Some([]) => self.cause,
            Some(others) => self.cause.evidence(format!("the same for {}", listed(others))),
        }
    }
}
