//! Where the other managers are: what the state says, and what they say themselves when they dial.
//!
//! A manager that has just joined has applied nothing and knows nobody; the leader dials it, and the hello says where
//! the leader is. One that moved says so before the state does. Both addresses are tried, the manager's own word
//! first: whoever answers shows by its certificate whether it is the right one.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;
use warren_types::{ManagerAddress, ManagerId, MemberId};

use super::roster::{Caller, Known, Refused, Roster};

/// Members that dialled, at most; a group has 16 at most, and some that were replaced.
const MOST_VISITORS: usize = 64;

/// Cheap to clone; all clones are the same.
#[derive(Clone)]
pub struct Directory(Arc<Shared>);

struct Shared {
    own: MemberId,
    seen: Mutex<Seen>,
    changed: watch::Sender<u64>,
}

struct Seen {
    roster: Arc<Roster>,
    own_address: ManagerAddress,
    /// Whom this manager was told of when it joined, until it has a state that says who is there.
    introduced: BTreeMap<MemberId, Known>,
    visitors: BTreeMap<MemberId, Visitor>,
    visits: u64,
}

/// What somebody said who dialled.
struct Visitor {
    id: ManagerId,
    /// The cluster's, in its state; 0 if it had none.
    life: u64,
    address: ManagerAddress,
    visit: u64,
    /// Its connection is still there.
    live: bool,
}

/// How a member is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Way {
    /// Who must answer.
    pub id: ManagerId,
    /// Where, the likeliest first; never empty.
    pub addresses: Vec<ManagerAddress>,
    /// Rises whenever it dials: it is there.
    pub visit: u64,
}

impl Seen {
    fn way(&self, member: MemberId) -> Option<Way> {
        let known = self.roster.members.get(&member).or_else(|| self.introduced.get(&member));
        let visitor = self.visitors.get(&member);
        let id = known.map(|known| known.id).or(visitor.map(|visitor| visitor.id))?;
        let told = visitor.map(|visitor| visitor.address.clone());
        let stored = known.map(|known| known.address.clone()).filter(|stored| Some(stored) != told.as_ref());
        let addresses = told.into_iter().chain(stored).collect();
        Some(Way { id, addresses, visit: visitor.map_or(0, |visitor| visitor.visit) })
    }
}

impl Directory {
    /// Of member `own`, which is reached at `address`.
    pub fn new(own: MemberId, address: ManagerAddress) -> Self {
        let (roster, visitors) = (Arc::default(), BTreeMap::new());
        let introduced = BTreeMap::new();
        let seen = Mutex::new(Seen { roster, own_address: address, introduced, visitors, visits: 0 });
        Self(Arc::new(Shared { own, seen, changed: watch::Sender::new(0) }))
    }

    fn lock(&self) -> MutexGuard<'_, Seen> {
        // Nothing here panics between two changes, so a poisoned one is still whole.
        self.0.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn told(&self) {
        self.0.changed.send_modify(|changes| *changes += 1);
    }

    /// This member.
    pub fn own(&self) -> MemberId {
        self.0.own
    }

    /// Where this manager is reached: what it was started with, until the state says another.
    pub fn own_address(&self) -> ManagerAddress {
        self.lock().own_address.clone()
    }

    /// This manager is reached there, and not where it was made to believe.
    pub fn move_to(&self, address: ManagerAddress) {
        self.lock().own_address = address;
    }

    /// These managers were there when this one joined. They are dialled until the state says who is there: one that
    /// others were told a wrong address of has no other way to hear of them.
    pub fn introduce(&self, managers: BTreeMap<MemberId, Known>) {
        let mut seen = self.lock();
        if seen.roster.members.is_empty() {
            seen.introduced = managers;
        }
    }

    /// Resolves whenever anything here is another.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.0.changed.subscribe()
    }

    /// The managers in the state.
    pub fn roster(&self) -> Arc<Roster> {
        self.lock().roster.clone()
    }

    /// The cluster's life that this manager is in; 0 while it has no state.
    pub fn life(&self) -> u64 {
        self.lock().roster.life
    }

    /// These are the managers in the state by now.
    pub fn update(&self, roster: Roster) {
        {
            let mut seen = self.lock();
            if *seen.roster == roster {
                return;
            }
            let address = |roster: &Roster| Some(roster.members.get(&self.0.own)?.address.clone());
            // The first address in the state may be that of before this start; this manager corrects it itself.
            if let (Some(before), Some(now)) = (address(&seen.roster), address(&roster))
                && before != now
            {
                seen.own_address = now;
            }
            seen.visitors.retain(|member, visitor| {
                let Visitor { id, life, .. } = *visitor;
                roster.admit(Caller { member: *member, id, life }, false).is_ok()
            });
            if !roster.members.is_empty() {
                seen.introduced.clear();
            }
            seen.roster = Arc::new(roster);
        }
        self.told();
    }

    /// Takes in a member that dialled and said who and where it is. An earlier visit of it is over. Whether this
    /// manager is `led` is as for [`Roster::admit`].
    ///
    /// # Errors
    /// As [`Roster::admit`].
    pub fn visit(&self, caller: Caller, address: ManagerAddress, led: bool) -> Result<Visit, Refused> {
        let Caller { member, id, life } = caller;
        let visit = {
            let mut seen = self.lock();
            seen.roster.admit(caller, led)?;
            if seen.visitors.len() >= MOST_VISITORS && !seen.visitors.contains_key(&member) {
                return Err(Refused::Unknown(id));
            }
            seen.visits += 1;
            let visit = seen.visits;
            seen.visitors.insert(member, Visitor { id, life, address, visit, live: true });
            visit
        };
        self.told();
        Ok(Visit { directory: self.clone(), caller, visit })
    }

    /// Which member calls, by its certificate: one in the state. A manager whose state has none yet knows only those
    /// that said hello, on a connection that is still there.
    ///
    /// # Errors
    /// [`Refused::Removed`], [`Refused::Unknown`].
    pub fn caller(&self, id: ManagerId) -> Result<MemberId, Refused> {
        let seen = self.lock();
        if let Some(member) = seen.roster.departed.get(&id) {
            return Err(Refused::Removed { member: *member, id });
        }
        let visitor = || {
            let mut live = seen.visitors.iter().filter(|(_, visitor)| visitor.live && visitor.id == id);
            live.next().map(|(member, _)| *member)
        };
        let found = if seen.roster.members.is_empty() { visitor() } else { seen.roster.member_of(id) };
        found.ok_or(Refused::Unknown(id))
    }

    /// All other managers that are known and were not removed.
    pub fn others(&self) -> Vec<MemberId> {
        let seen = self.lock();
        let all = seen.roster.members.keys().chain(seen.visitors.keys()).chain(seen.introduced.keys());
        let mut others: Vec<_> = all.copied().filter(|member| *member != self.0.own).collect();
        others.sort_unstable();
        others.dedup();
        others
    }

    /// How to reach a member.
    pub fn way(&self, member: MemberId) -> Option<Way> {
        self.lock().way(member)
    }
}

/// A member that dialled, for as long as its connection is there.
pub struct Visit {
    directory: Directory,
    caller: Caller,
    visit: u64,
}

impl Visit {
    /// Whose.
    pub fn member(&self) -> MemberId {
        self.caller.member
    }

    /// Whether it may go on: it would still be let in, and has not dialled again.
    ///
    /// # Errors
    /// As [`Roster::admit`].
    pub fn is_current(&self, led: bool) -> Result<bool, Refused> {
        let seen = self.directory.lock();
        seen.roster.admit(self.caller, led)?;
        Ok(seen.visitors.get(&self.caller.member).is_some_and(|visitor| visitor.visit == self.visit))
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        let mut seen = self.directory.lock();
        if let Some(visitor) = seen.visitors.get_mut(&self.caller.member)
            && visitor.visit == self.visit
        {
            visitor.live = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use warren_types::Id;

    fn id(number: u128) -> ManagerId {
        ManagerId(Id(number))
    }

    fn at(text: &str) -> ManagerAddress {
        text.parse().unwrap()
    }

    fn roster(members: &[(MemberId, u128, &str)], next: MemberId) -> Roster {
        let known = |(member, manager, address): &(MemberId, u128, &str)| {
            (*member, Known { id: id(*manager), address: at(address) })
        };
        Roster { life: 1, members: members.iter().map(known).collect(), next, ..Roster::default() }
    }

    fn visit(directory: &Directory, member: MemberId, address: &str) -> Visit {
        let caller = Caller { member, id: id(10 + u128::from(member)), life: 1 };
        directory.visit(caller, at(address), false).unwrap()
    }

    #[test]
    fn a_new_manager_dials_whom_it_was_told_of_until_it_has_a_state() {
        let directory = Directory::new(4, at("d:1"));
        let known = |number, address| Known { id: id(number), address: at(address) };
        directory.introduce([(1, known(11, "a:1")), (2, known(12, "b:1"))].into());
        assert_eq!(directory.others(), [1, 2]);
        let way = directory.way(1).unwrap();
        assert_eq!((way.id, way.addresses), (id(11), vec![at("a:1")]));
        directory.update(Roster::default());
        assert_eq!(directory.others(), [1, 2], "a state without members says nothing");
        directory.update(roster(&[(1, 11, "a:2")], 4));
        assert_eq!((directory.others(), directory.way(2)), (vec![1], None));
        assert_eq!(directory.way(1).unwrap().addresses, [at("a:2")]);
        directory.introduce([(2, known(12, "b:1"))].into());
        assert_eq!(directory.others(), [1], "the state knows better");
    }

    #[test]
    fn a_new_manager_finds_whoever_dials_it() {
        let directory = Directory::new(4, at("d:1"));
        assert_eq!(directory.way(1), None);
        let visited = visit(&directory, 1, "a:1");
        assert_eq!(directory.way(1).unwrap().addresses, [at("a:1")]);
        assert_eq!((directory.others(), directory.caller(id(11))), (vec![1], Ok(1)));
        drop(visited);
        assert_eq!(directory.caller(id(11)), Err(Refused::Unknown(id(11))), "it must say hello again");
        assert_eq!(directory.way(1).unwrap().addresses, [at("a:1")], "it may still be there");
    }

    #[test]
    fn what_a_manager_says_itself_is_tried_first() {
        let directory = Directory::new(1, at("a:1"));
        directory.update(roster(&[(1, 11, "a:1"), (2, 12, "b:1")], 3));
        let before = directory.way(2).unwrap();
        assert_eq!(before.addresses, [at("b:1")]);
        let visited = visit(&directory, 2, "b:2");
        let now = directory.way(2).unwrap();
        assert_eq!(now.addresses, [at("b:2"), at("b:1")]);
        assert!(now.visit > before.visit);
        let newest = visit(&directory, 2, "b:3");
        assert_eq!((visited.is_current(false), newest.is_current(false)), (Ok(false), Ok(true)));
        drop(visited);
        assert_eq!(newest.is_current(false), Ok(true), "the end of an earlier visit is not that of this one");
    }

    #[test]
    fn a_removed_manager_is_out_at_once() {
        let directory = Directory::new(1, at("a:1"));
        directory.update(roster(&[(1, 11, "a:1"), (2, 12, "b:1")], 3));
        let visited = visit(&directory, 2, "b:1");
        let changes = directory.changes();
        directory.update(Roster { departed: [(id(12), 2)].into(), ..roster(&[(1, 11, "a:1")], 3) });
        assert!(changes.has_changed().unwrap());
        assert_eq!(visited.is_current(false), Err(Refused::Removed { member: 2, id: id(12) }));
        assert_eq!((directory.others(), directory.way(2)), (vec![], None));
        assert!(directory.caller(id(12)).is_err());
    }

    #[test]
    fn who_is_not_in_the_state_calls_nothing_and_is_out_when_there_is_a_leader() {
        let directory = Directory::new(1, at("a:1"));
        directory.update(roster(&[(1, 11, "a:1"), (2, 12, "b:1")], 3));
        let visited = visit(&directory, 9, "i:1");
        assert_eq!(directory.caller(id(19)), Err(Refused::Unknown(id(19))));
        assert_eq!(visited.is_current(false), Ok(true));
        assert_eq!(visited.is_current(true), Err(Refused::Unknown(id(19))));
    }

    #[test]
    fn a_visit_ends_when_the_first_state_here_is_of_another_life() {
        let directory = Directory::new(4, at("d:1"));
        let visited = visit(&directory, 1, "a:1");
        let later = Roster { life: 2, ..roster(&[(1, 11, "a:1"), (4, 14, "d:1")], 5) };
        directory.update(later);
        let over = Refused::OlderLife { member: 1, own: 2, found: 1 };
        assert_eq!(visited.is_current(false), Err(over));
        assert_eq!(directory.way(1).unwrap().visit, 0);
    }

    #[test]
    fn the_own_address_follows_the_state_but_not_what_it_said_first() {
        let directory = Directory::new(1, at("a:2"));
        directory.update(roster(&[(1, 11, "a:1")], 2));
        assert_eq!(directory.own_address(), at("a:2"));
        directory.update(roster(&[(1, 11, "a:3")], 2));
        assert_eq!(directory.own_address(), at("a:3"));
    }
}
