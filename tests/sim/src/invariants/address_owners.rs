//! No address, subnet or node number has two owners, and none gets another owner before it has rested for two minutes
//! of the cluster clock.

use std::collections::{BTreeMap, BTreeSet};

use warren_core::State;
use warren_core::state::WithdrawnAddress;
use warren_types::{NodeId, ServiceId, TaskId, Timestamp};

/// How long nobody has what was withdrawn, in milliseconds.
const REST_TIME: u64 = 120_000;

/// Who has something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum AddressOwner {
    Task(TaskId),
    Service(ServiceId),
    Node(NodeId),
}

/// The owner of everything that was ever assigned in the current incarnation.
#[derive(Debug, Default)]
pub struct AddressOwners {
    /// The last owner, and when it was withdrawn from that.
    last: BTreeMap<WithdrawnAddress, (AddressOwner, Option<Timestamp>)>,
    held: BTreeMap<AddressOwner, BTreeSet<WithdrawnAddress>>,
    /// How many task addresses, virtual addresses, subnets and node numbers had another owner before.
    pub reassigned: [u64; 4],
}

impl AddressOwners {
    /// The owners in a state with which a cluster or an incarnation begins.
    pub fn of(state: &State, reassigned: [u64; 4]) -> Result<Self, String> {
        let mut owners = Self { reassigned, ..Self::default() };
        let tasks = state.tasks().map(|task| AddressOwner::Task(task.id));
        let services = state.services().map(|service| AddressOwner::Service(service.id));
        let nodes = state.nodes().map(|node| AddressOwner::Node(node.id));
        for owner in tasks.chain(services).chain(nodes) {
            owners.update(state, owner)?;
        }
        Ok(owners)
    }

    /// The present owner.
    pub fn owner(&self, item: WithdrawnAddress) -> Option<AddressOwner> {
        self.last.get(&item).filter(|(_, withdrawn)| withdrawn.is_none()).map(|(owner, _)| *owner)
    }

    /// Compares what the owner has in the newest state. Returns whether it got something that had another owner.
    pub fn update(&mut self, newest: &State, owner: AddressOwner) -> Result<bool, String> {
        let now = held_by(newest, owner);
        let before = match now.is_empty() {
            true => self.held.remove(&owner).unwrap_or_default(),
            false => self.held.insert(owner, now.clone()).unwrap_or_default(),
        };
        for item in before.difference(&now) {
            self.last.insert(*item, (owner, Some(newest.clock())));
        }
        let mut is_reassigned = false;
        for item in now.difference(&before) {
            match self.last.insert(*item, (owner, None)) {
                None => {}
                Some((other, None)) => {
                    return Err(format!(
                        "addresses and ports have one owner: {item:?} of {other:?} and {owner:?}"
                    ));
                }
                Some((other, Some(at))) if newest.clock().0 < at.0 + REST_TIME => {
                    let now = newest.clock();
                    return Err(format!(
                        "withdrawn addresses rest for two minutes: {item:?} of {other:?} until {at:?} goes to \
                         {owner:?} at {now:?}"
                    ));
                }
                Some(_) => {
                    self.reassigned[kind(owner, *item)] += 1;
                    is_reassigned = true;
                }
            }
        }
        Ok(is_reassigned)
    }
}

fn kind(owner: AddressOwner, item: WithdrawnAddress) -> usize {
    match (item, owner) {
        (WithdrawnAddress::Address(_), AddressOwner::Service(_)) => 1,
        (WithdrawnAddress::Address(_), _) => 0,
        (WithdrawnAddress::Subnet(_), _) => 2,
        (WithdrawnAddress::NodeNumber(_), _) => 3,
    }
}

fn held_by(state: &State, owner: AddressOwner) -> BTreeSet<WithdrawnAddress> {
    match owner {
        AddressOwner::Task(id) => {
            let task = state.task(&id).filter(|task| task.holds_resources());
            task.and_then(|task| task.address).map(WithdrawnAddress::Address).into_iter().collect()
        }
        AddressOwner::Service(id) => {
            let service = state.service(&id);
            let addresses = service.into_iter().flat_map(|service| service.virtual_addresses.values());
            addresses.map(|address| WithdrawnAddress::Address(*address)).collect()
        }
        AddressOwner::Node(id) => state.node(&id).map_or_else(BTreeSet::new, |node| {
            let subnets = node.subnets.iter().map(|subnet| WithdrawnAddress::Subnet(*subnet));
            subnets.chain([WithdrawnAddress::NodeNumber(node.number)]).collect()
        }),
    }
}
