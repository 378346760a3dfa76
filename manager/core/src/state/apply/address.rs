//! Assigns addresses, subnets and node numbers, and takes them back. What was withdrawn is assigned again only
//! after [`Command::ReleaseAddresses`](crate::Command::ReleaseAddresses): nodes that were told of the earlier
//! owner must have forgotten it.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use ipnet::Ipv4Net;
use warren_types::Node;

use super::ApplyContext;
use crate::state::address::{Withdrawal, WithdrawnAddress};
use crate::state::{CommandResponse, Refusal, State, StateChange, address, digest};

/// Nobody has it any more.
pub(super) fn withdraw(state: &mut State, entry: &ApplyContext, item: WithdrawnAddress) {
    let withdrawal = Withdrawal { at: entry.now, index: entry.index };
    state.digest_sum.add(digest::withdrawn(item, withdrawal));
    match state.withdrawn.insert(item, withdrawal) {
        Some(before) => state.digest_sum.remove(digest::withdrawn(item, before)),
        None => state.index.add_withdrawn(item),
    }
}

/// What was withdrawn up to that entry, and long enough ago, can be assigned again.
pub(super) fn release(state: &mut State, entry: &mut ApplyContext, acknowledged: u64) -> CommandResponse {
    let due: Vec<(WithdrawnAddress, Withdrawal)> =
        state.releasable_addresses(acknowledged, entry.now).collect();
    for (item, withdrawal) in &due {
        state.withdrawn.remove(item);
        state.index.remove_withdrawn(*item);
        state.digest_sum.remove(digest::withdrawn(*item, *withdrawal));
    }
    if !due.is_empty() {
        entry.changes.push(StateChange::Addresses);
    }
    CommandResponse::Done
}

/// A virtual address that nobody has, beside those that are about to be `assigned`.
pub(super) fn free_virtual_address(state: &State, assigned: &BTreeSet<Ipv4Addr>) -> Option<Ipv4Addr> {
    let cluster = state.cluster.as_ref()?;
    let is_free = |address: &Ipv4Addr| {
        !assigned.contains(address)
            && !state.index.virtual_addresses.contains_key(address)
            && !state.withdrawn.contains_key(&WithdrawnAddress::Address(*address))
    };
    let newest = state.index.virtual_addresses.get_max().map(|(address, _)| *address);
    let ranges: Vec<Ipv4Net> = cluster.virtual_ranges().collect();
    // The one after the highest is free unless the range is exhausted, so that most searches end at once.
    let after = newest.map(|address| Ipv4Addr::from(u32::from(address).saturating_add(1)));
    let next =
        after.filter(|address| ranges.iter().any(|range| is_host_of(range, *address)) && is_free(address));
    next.or_else(|| ranges.iter().flat_map(Ipv4Net::hosts).find(is_free))
}

fn is_host_of(range: &Ipv4Net, address: Ipv4Addr) -> bool {
    range.contains(&address) && address != range.network() && address != range.broadcast()
}

/// A free subnet, and the state's next cursor.
pub(super) fn free_subnet(state: &State) -> Result<(Ipv4Net, u64), Refusal> {
    let cluster = state.cluster.as_ref().ok_or(Refusal::NoCluster)?;
    let total = cluster.count_subnets();
    let cursor = state.subnet_cursor;
    let mut numbers = (cursor..total).chain(0..cursor.min(total));
    let found = numbers.find_map(|number| {
        let subnet = cluster.subnet(number)?;
        let is_free = !state.index.subnets.contains_key(&subnet.network())
            && !state.withdrawn.contains_key(&WithdrawnAddress::Subnet(subnet));
        is_free.then_some((subnet, number + 1))
    });
    found.ok_or(Refusal::SubnetsExhausted { allocated: total })
}

/// A free node number.
pub(super) fn free_node_number(state: &State) -> Result<u16, Refusal> {
    let is_free = |number: &u16| {
        !state.index.node_numbers.contains_key(number)
            && !state.withdrawn.contains_key(&WithdrawnAddress::NodeNumber(*number))
    };
    // The one after the highest is mostly free, so that most searches end at once.
    let highest = state.index.node_numbers.get_max().map_or(0, |(number, _)| *number);
    let next = highest.checked_add(1).filter(is_free);
    let found = next.or_else(|| (1..=address::MAX_NODE_NUMBER).find(is_free));
    found.ok_or(Refusal::NodeNumbersExhausted)
}

/// A removed node's subnets and its number.
pub(super) fn withdraw_node(state: &mut State, entry: &ApplyContext, node: &Node) {
    node.subnets.iter().for_each(|subnet| withdraw(state, entry, WithdrawnAddress::Subnet(*subnet)));
    withdraw(state, entry, WithdrawnAddress::NodeNumber(node.number));
}

/// The first free address of the node for a task, and the node's next cursor; `None` if all its subnets are full.
pub(super) fn free_task_address(state: &State, node: &Node) -> Option<(Ipv4Addr, u32)> {
    let cursor = state.address_cursors.get(&node.id).copied().unwrap_or(0);
    let is_held = |address: Ipv4Addr| {
        state.index.tasks_by_address.get(address.into()).is_some()
            || state.withdrawn.contains_key(&WithdrawnAddress::Address(address))
    };
    address::next_free(&node.subnets, cursor, is_held)
}
