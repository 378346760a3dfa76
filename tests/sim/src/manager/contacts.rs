//! Who was heard when: the leader asks every manager once a second, and before it starts any clock.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use warren_core::{Command, Hearing, LEVEL, Plan};
use warren_types::{ClusterId, Id, MemberId};

use super::{Who, joining};
use crate::event::{OnManager, ToPeer};
use crate::world::World;

/// A new leader waits so long for managers to say who is connected to them.
const ASKED_FOR: u64 = 1_000;
/// Nodes are judged at least this often.
const LISTEN: Duration = Duration::from_secs(1);
/// Every so many seconds the leader wakes every key, in case a wake-up was lost.
const SWEEP: u64 = 5;

/// What a leader knows of contacts.
#[derive(Debug, Default)]
pub struct Listening {
    /// Managers that have not answered yet, and until when they are waited for.
    asked: BTreeSet<usize>,
    until: u64,
    /// Who answered when since nodes were judged last, and how long ago it had heard which worker.
    told: BTreeMap<MemberId, (u64, Vec<(usize, u64)>)>,
    hearing: Hearing,
}

impl World {
    /// A new leader asks every manager for its sessions, founds the cluster if nobody has, and looks at
    /// everything.
    pub(super) fn begins_to_lead(&mut self, host: usize) {
        let asked = self.asks_who_is_there(host);
        let until = self.now + ASKED_FOR;
        let Some(run) = &mut self.managers[host].run else { return };
        let hearing = std::mem::take(&mut run.listening.hearing);
        run.listening = Listening { asked, until, told: BTreeMap::new(), hearing };
        self.found_cluster(host);
        self.restart_planning(host);
    }

    /// Asks every other manager which workers it heard. Answers whom.
    fn asks_who_is_there(&mut self, host: usize) -> BTreeSet<usize> {
        let others = (0..self.managers.len()).filter(|other| *other != host && self.is_member(host, *other));
        let others: BTreeSet<usize> = others.collect();
        let term = self.life(host).map_or(0, |run| run.role.term);
        for other in &others {
            self.send_peer(host, *other, ToPeer::WhoIsThere { term });
        }
        others
    }

    fn found_cluster(&mut self, host: usize) {
        let at = self.stamp(host);
        let Some(run) = self.life(host) else { return };
        let founded = run.state.cluster().is_some();
        let token = joining::token(&run.state);
        let is_known = |id| run.state.node(id).is_some() || run.state.removed_at(id).is_some();
        let unknown: Vec<usize> =
            (0..self.workers.len()).filter(|worker| !is_known(&self.workers[*worker].id)).collect();
        if !founded {
            let ranges = vec!["10.210.0.0/16".parse().expect("a valid range")];
            let create = Command::CreateCluster { id: ClusterId(Id(1)), ranges, level: LEVEL, at };
            self.propose(host, Who::Nobody, create, u64::MAX);
        }
        if let Some(token) = token {
            self.propose(host, Who::Nobody, token, u64::MAX);
        }
        for worker in unknown {
            let register = self.workers[worker].registers(at);
            self.propose(host, Who::Nobody, register, u64::MAX);
        }
    }

    /// Once a second, at every manager.
    pub(super) fn second(&mut self, host: usize) {
        self.at_manager(host, 1_000, OnManager::Second);
        self.registers(host);
        self.says_hello(host);
        self.reads(host);
        self.give_up_writes(host);
        self.give_up_silent_workers(host);
        let Some(run) = &self.managers[host].run else { return };
        if run.role.may_plan {
            self.asks_who_is_there(host);
            self.people_tidy(host);
            self.wake_members(host);
            if (self.now / 1_000).is_multiple_of(SWEEP) {
                self.wake_all(host);
            }
        }
    }

    pub(super) fn hears_peer(&mut self, host: usize, from: usize, from_boot: u64, said: ToPeer) {
        match said {
            ToPeer::Forward { request, command, deadline } => {
                let from = Who::Peer { host: from, boot: from_boot, request };
                self.forwarded(host, from, *command, deadline);
            }
            // Whoever is not let in is told so.
            ToPeer::Hello { id, address } => {
                if self.lets_in(host, id) {
                    self.was_told(host, id, address);
                }
            }
            ToPeer::Removed => self.was_removed(host),
            ToPeer::Answer { request, answer } => self.leader_answered(host, request, answer),
            ToPeer::WhoIsThere { term } => {
                let now = self.now;
                let Some(run) = &self.managers[host].run else { return };
                let heard = run.sessions.ages(now).collect();
                self.send_peer(host, from, ToPeer::Contacts { term, heard });
            }
            ToPeer::Contacts { term, heard } => {
                let (now, member) = (self.now, self.managers[from].id);
                let Some(run) = &mut self.managers[host].run else { return };
                if run.role.leads && run.role.term == term {
                    run.listening.asked.remove(&from);
                    run.listening.told.insert(member, (now, heard));
                }
            }
        }
    }

    /// Judges the nodes, once everybody was asked.
    pub(super) fn judge(&mut self, host: usize) -> Plan {
        let (now, elapsed, stamp) = (self.now, self.elapsed(), self.stamp(host));
        let ids: Vec<_> = self.workers.iter().map(|worker| worker.id).collect();
        let Some(run) = &mut self.managers[host].run else { return Plan::default() };
        let recheck_after = Some(LISTEN);
        if !run.listening.asked.is_empty() && now < run.listening.until {
            return Plan { commands: Vec::new(), recheck_after: Some(Duration::from_millis(50)) };
        }
        let ago = |millis| Duration::from_millis(millis);
        let here: Vec<_> = run.sessions.ages(now).collect();
        let here = here.into_iter().map(|(worker, age)| (ids[worker], elapsed.saturating_sub(ago(age))));
        let told = std::mem::take(&mut run.listening.told).into_iter().map(|(member, (at, heard))| {
            let ages = heard.into_iter().map(|(worker, age)| (ids[worker], ago(age + now - at)));
            (member, ages.collect())
        });
        let (term, told) = (run.role.term, told.collect());
        let judgement = run.listening.hearing.judge(&run.state, term, elapsed, here, told);
        Plan { commands: judgement.commands(&run.state, stamp), recheck_after }
    }
}
