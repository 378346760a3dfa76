//! Which machines are upgraded, in which order, and when one is healthy again. Pure.

use warren_proto::v1;

use super::program::UpgradeProgram;
use crate::failure::{CommandError, ExitKind};

/// A machine of the cluster: its manager, its node, or both.
#[derive(Debug, Clone, PartialEq)]
pub struct Machine {
    pub manager: Option<v1::Manager>,
    /// `None` for a manager that runs no tasks.
    pub node: Option<v1::Node>,
}

impl Machine {
    /// The name of its node, or of its manager.
    pub fn name(&self) -> &str {
        let of_manager = || self.manager.as_ref().map(|manager| manager.name.as_str());
        self.node.as_ref().map(|node| node.name.as_str()).or_else(of_manager).unwrap_or_default()
    }

    /// Whether its node reports the program.
    pub fn runs(&self, program: &UpgradeProgram) -> bool {
        self.node.as_ref().is_some_and(|node| node.program_digest == program.digest.to_string())
    }

    /// Learners, other followers, the leader, workers.
    fn rank(&self) -> u8 {
        match &self.manager {
            None => 3,
            Some(manager) if manager.leader => 2,
            Some(manager) if manager.suffrage() == v1::Suffrage::Voter => 1,
            Some(_) => 0,
        }
    }

    fn is_called(&self, text: &str) -> bool {
        let is_prefix = |id: &str| !text.is_empty() && id.starts_with(text);
        let of_node = self.node.as_ref().is_some_and(|node| node.name == text || is_prefix(&node.id));
        of_node || self.manager.as_ref().is_some_and(|manager| manager.name == text || is_prefix(&manager.id))
    }
}

/// Why no machine can be upgraded now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Obstacle {
    pub why: String,
    /// What to do.
    pub hint: String,
    /// It may pass by itself: a manager or node does not answer at this moment.
    pub is_passing: bool,
}

/// The machines in the order in which they are upgraded.
#[derive(Debug, Clone, PartialEq)]
pub struct UpgradePlan {
    pub machines: Vec<Machine>,
    /// All managers, also of machines that are not upgraded.
    managers: Vec<v1::Manager>,
}

impl UpgradePlan {
    /// All machines, or those that `selected` names; `what` is the failure summary.
    pub fn new(
        managers: Vec<v1::Manager>,
        nodes: Vec<v1::Node>,
        selected: &[String],
        what: &str,
    ) -> Result<Self, CommandError> {
        let node_of = |manager: &v1::Manager| {
            nodes.iter().find(|node| !manager.node.is_empty() && node.name == manager.node).cloned()
        };
        let mut machines: Vec<Machine> = managers
            .iter()
            .map(|manager| Machine { manager: Some(manager.clone()), node: node_of(manager) })
            .collect();
        let is_worker = |node: &&v1::Node| managers.iter().all(|manager| manager.node != node.name);
        machines.extend(
            nodes.iter().filter(is_worker).map(|node| Machine { manager: None, node: Some(node.clone()) }),
        );
        for text in selected {
            if !machines.iter().any(|machine| machine.is_called(text)) {
                let why = format!("no node and no manager is called {text}");
                return Err(CommandError::new(ExitKind::NotFound, what, why, "see `warren node ls`"));
            }
        }
        machines.retain(|machine| selected.is_empty() || selected.iter().any(|text| machine.is_called(text)));
        machines.sort_by(|one, other| (one.rank(), one.name()).cmp(&(other.rank(), other.name())));
        Ok(Self { machines, managers })
    }

    /// The highest index that a manager has applied.
    pub fn highest_applied(&self) -> u64 {
        self.managers.iter().map(|manager| manager.applied).max().unwrap_or_default()
    }

    /// Checks that the machines which do not run `program` can be upgraded: before a manager is restarted, all others
    /// must have applied `floor`.
    pub fn check(&self, program: &UpgradeProgram, floor: u64) -> Result<(), Obstacle> {
        let remaining = || self.machines.iter().filter(|machine| !machine.runs(program));
        let refused = |why: String, hint: String| Err(Obstacle { why, hint, is_passing: false });
        let not_ready = |why: String, hint: String| Err(Obstacle { why, hint, is_passing: true });
        let others = "or name other machines with --node";
        for machine in remaining() {
            let name = machine.name();
            let Some(node) = &machine.node else {
                let why =
                    format!("manager {name} has no node (--manager-only), which would replace its program");
                let hint = format!(
                    "install the program on that machine and restart its manager; then name the other machines \
                     with --node, without {name}"
                );
                return refused(why, hint);
            };
            let architecture = node.description.as_ref().map_or("", |it| it.architecture.as_str());
            if !architecture.is_empty() && architecture != program.architecture {
                let why =
                    format!("the program is for {}, and {name} is {architecture}", program.architecture);
                return refused(why, format!("give a program for {architecture}, {others}"));
            }
            if node.status() != v1::NodeStatus::Ready {
                let hint = format!("start it, or remove it with `warren node rm {name}`, {others}");
                return not_ready(format!("node {name} is not READY"), hint);
            }
            // It may run the program already.
            if node.program_digest.is_empty() {
                let hint = format!("see the log of node {name}, {others}");
                return not_ready(format!("node {name} has not reported its program"), hint);
            }
        }
        if !remaining().any(|machine| machine.manager.is_some()) {
            return Ok(());
        }
        // The restart of one more manager could cost the majority.
        let meanwhile = |why: String| {
            let why = format!("{why}, and no manager may be restarted meanwhile");
            not_ready(why, "see `warren manager ls`, until all are READY".to_owned())
        };
        if !self.managers.iter().any(|manager| manager.leader) {
            return meanwhile("the managers have no leader".to_owned());
        }
        for manager in &self.managers {
            let state = match manager.status() {
                _ if manager.removing => "is being removed",
                v1::ManagerStatus::Ready if !manager.reason.is_empty() => &manager.reason,
                v1::ManagerStatus::Ready if manager.applied < floor => "has not caught up",
                v1::ManagerStatus::Ready => continue,
                _ => "does not answer",
            };
            return meanwhile(format!("manager {} {state}", manager.name));
        }
        Ok(())
    }
}

/// What a machine that was restarted must reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HealthGoal {
    /// The applied index of its manager: the highest of all managers when it ran the new program first.
    applied: Option<u64>,
}

impl HealthGoal {
    /// Whether `machine` is healthy with `program`, according to what the cluster reports now; else what is missing.
    pub fn evaluate(
        &mut self,
        machine: &Machine,
        program: &UpgradeProgram,
        managers: &[v1::Manager],
        node: &v1::Node,
    ) -> Result<(), String> {
        if node.status() != v1::NodeStatus::Ready {
            return Err("its node is not READY".to_owned());
        }
        if node.program_digest.is_empty() {
            return Err("its node has not reported its program".to_owned());
        }
        if node.program_digest != program.digest.to_string() {
            return Err("its node runs another program".to_owned());
        }
        let Some(known) = &machine.manager else { return Ok(()) };
        let manager = managers.iter().find(|manager| manager.id == known.id);
        let manager = manager.ok_or("its manager is not a member any more")?;
        if manager.status() != v1::ManagerStatus::Ready {
            return Err("its manager does not answer".to_owned());
        }
        if !managers.iter().any(|manager| manager.leader) {
            return Err("the managers have no leader".to_owned());
        }
        let highest = managers.iter().map(|manager| manager.applied).max().unwrap_or_default();
        if manager.applied < *self.applied.get_or_insert(highest) {
            return Err("its manager has not caught up".to_owned());
        }
        match manager.reason.as_str() {
            "" => Ok(()),
            reason => Err(reason.to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use warren_daemon::program::ProgramDigest;

    use super::*;

    fn program() -> UpgradeProgram {
        let digest = ProgramDigest::of(&b"new"[..]).unwrap();
        UpgradeProgram { size: 3, digest, architecture: "amd64" }
    }

    fn manager(name: &str, suffrage: v1::Suffrage) -> v1::Manager {
        v1::Manager {
            id: format!("id-of-{name}"),
            name: name.into(),
            node: name.into(),
            suffrage: suffrage.into(),
            status: v1::ManagerStatus::Ready.into(),
            applied: 7,
            ..v1::Manager::default()
        }
    }

    fn node(name: &str) -> v1::Node {
        let description = v1::NodeDescription { architecture: "amd64".into(), ..Default::default() };
        v1::Node {
            id: format!("node-{name}"),
            name: name.into(),
            status: v1::NodeStatus::Ready.into(),
            description: Some(description),
            program_digest: "sha256:old".into(),
            ..Default::default()
        }
    }

    fn cluster() -> (Vec<v1::Manager>, Vec<v1::Node>) {
        let (voter, learner) = (v1::Suffrage::Voter, v1::Suffrage::Learner);
        let leader = v1::Manager { leader: true, ..manager("m1", voter) };
        let managers = vec![leader, manager("m3", voter), manager("m2", voter), manager("m9", learner)];
        (managers, ["w2", "m1", "m2", "m3", "m9", "w1"].map(node).into())
    }

    fn plan(selected: &[&str]) -> Result<UpgradePlan, CommandError> {
        let selected: Vec<String> = selected.iter().map(|name| (*name).to_owned()).collect();
        let (managers, nodes) = cluster();
        UpgradePlan::new(managers, nodes, &selected, "nothing was upgraded")
    }

    fn names(plan: &UpgradePlan) -> Vec<&str> {
        plan.machines.iter().map(Machine::name).collect()
    }

    #[test]
    fn followers_come_before_the_leader_and_workers_last() {
        let all = plan(&[]).unwrap();
        assert_eq!(names(&all), ["m9", "m2", "m3", "m1", "w1", "w2"]);
        assert!(all.machines[..4].iter().all(|it| it.manager.is_some() && it.node.is_some()));
        assert_eq!(all.check(&program(), 7), Ok(()));
        assert_eq!(names(&plan(&["w2", "id-of-m1", "m3", "m3"]).unwrap()), ["m3", "m1", "w2"]);
        let unknown = plan(&["w2", "w7"]).unwrap_err();
        assert_eq!(
            (unknown.kind, unknown.why.as_str()),
            (ExitKind::NotFound, "no node and no manager is called w7")
        );
        assert_eq!(plan(&[""]).unwrap_err().kind, ExitKind::NotFound);
    }

    #[test]
    fn machines_with_the_program_are_left_out() {
        let (mut managers, mut nodes) = cluster();
        managers[2].status = v1::ManagerStatus::Unreachable.into();
        for node in &mut nodes {
            node.program_digest = program().digest.to_string();
        }
        let done = UpgradePlan::new(managers.clone(), nodes.clone(), &[], "x").unwrap();
        assert!(done.machines.iter().all(|machine| machine.runs(&program())));
        assert_eq!(done.check(&program(), 7), Ok(()), "nothing is restarted");
        // Only a worker is left, and the managers go on.
        nodes[0].program_digest = "sha256:old".into();
        let rest = UpgradePlan::new(managers, nodes, &[], "x").unwrap();
        let remaining: Vec<_> =
            rest.machines.iter().filter(|it| !it.runs(&program())).map(Machine::name).collect();
        assert_eq!((remaining, rest.check(&program(), 7)), (vec!["w2"], Ok(())));
    }

    #[test]
    fn what_cannot_be_upgraded_is_refused_before_anything_is_changed() {
        type Change = fn(&mut Vec<v1::Manager>, &mut Vec<v1::Node>);
        let refused = |change: Change| {
            let (mut managers, mut nodes) = cluster();
            change(&mut managers, &mut nodes);
            UpgradePlan::new(managers, nodes, &[], "x").unwrap().check(&program(), 7).unwrap_err()
        };
        let Obstacle { why, hint, .. } =
            refused(|managers, _| managers[1].status = v1::ManagerStatus::Unreachable.into());
        assert_eq!(why, "manager m3 does not answer, and no manager may be restarted meanwhile");
        assert!(hint.contains("`warren manager ls`"), "{hint}");
        let changes: [(Change, &str); 3] = [
            (|managers, _| managers[1].removing = true, "m3 is being removed"),
            (|managers, _| managers[1].applied = 6, "m3 has not caught up"),
            (|managers, _| managers[1].reason = "its state differs".into(), "m3 its state differs"),
        ];
        for (change, expected) in changes {
            let Obstacle { why, is_passing, .. } = refused(change);
            assert!(is_passing && why.starts_with(&format!("manager {expected}")), "{why}");
        }
        let Obstacle { why, .. } = refused(|managers, _| managers[0].leader = false);
        assert!(why.starts_with("the managers have no leader"), "{why}");
        let Obstacle { why, is_passing, .. } = refused(|_, nodes| nodes[0].program_digest.clear());
        assert!(is_passing && why == "node w2 has not reported its program", "{why}");
        let Obstacle { why, hint, is_passing } =
            refused(|_, nodes| nodes[0].status = v1::NodeStatus::Down.into());
        assert!(is_passing);
        assert_eq!(why, "node w2 is not READY");
        assert!(hint.contains("`warren node rm w2`") && hint.contains("--node"), "{hint}");
        let Obstacle { why, hint, .. } = refused(|managers, nodes| {
            managers[0].node.clear();
            nodes.retain(|node| node.name != "m1");
        });
        assert!(why.starts_with("manager m1 has no node (--manager-only)"), "{why}");
        assert!(hint.contains("without m1"), "{hint}");
        let Obstacle { is_passing, .. } = refused(|managers, _| managers[0].node.clear());
        assert!(!is_passing);
        let Obstacle { why, .. } = refused(|_, nodes| {
            nodes[5].description =
                Some(v1::NodeDescription { architecture: "arm64".into(), ..Default::default() });
        });
        assert_eq!(why, "the program is for amd64, and w1 is arm64");
    }

    #[test]
    fn manager_is_healthy_when_it_has_caught_up() {
        let (mut managers, nodes) = cluster();
        let machine = Machine { manager: Some(managers[1].clone()), node: None };
        let mut node = nodes[3].clone();
        let mut goal = HealthGoal::default();
        let mut missing = |managers: &[v1::Manager], node: &v1::Node| {
            goal.evaluate(&machine, &program(), managers, node).err().unwrap_or_default()
        };
        assert_eq!(missing(&managers, &node), "its node runs another program");
        node.program_digest.clear();
        assert_eq!(missing(&managers, &node), "its node has not reported its program");
        node.program_digest = program().digest.to_string();
        managers[1].status = v1::ManagerStatus::Unreachable.into();
        assert_eq!(missing(&managers, &node), "its manager does not answer");
        managers[1].status = v1::ManagerStatus::Ready.into();
        (managers[0].applied, managers[1].applied) = (20, 9);
        assert_eq!(missing(&managers, &node), "its manager has not caught up");
        // Others write all the time.
        (managers[0].applied, managers[1].applied) = (50, 20);
        assert_eq!(missing(&managers, &node), "");
        managers[1].reason = "its state differs".into();
        assert_eq!(missing(&managers, &node), "its state differs");
        managers[0].leader = false;
        assert_eq!(missing(&managers, &node), "the managers have no leader");
        let down = v1::Node { status: v1::NodeStatus::Down.into(), ..node.clone() };
        assert_eq!(missing(&managers, &down), "its node is not READY");
        let worker = Machine { manager: None, node: Some(node.clone()) };
        assert_eq!(HealthGoal::default().evaluate(&worker, &program(), &[], &node), Ok(()));
    }
}
