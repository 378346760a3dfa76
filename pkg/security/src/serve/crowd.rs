//! A bounded number of places for those who did not prove who they are, shared out by address: nobody keeps
//! those out who have asked for a place by being many. Who asks comes out of the port's queue in order: as long as its
//! first has to wait for a place, those behind it do, too.
//!
//! When all places are taken, a newcomer gets that of a guest who lets us wait for longer than its patience, from the
//! address that has most of those, but never from one that has fewer places than the newcomer's own. Where there is
//! none it gets the place of an address that has more even without it, or it waits. A guest who waits for us loses
//! nothing by that: what was done for it would be done once more.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, sleep_until};

/// The places.
#[derive(Debug)]
pub(super) struct Crowd {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    places: usize,
    patience: Duration,
    taken: Mutex<Taken>,
    left: Notify,
}

#[derive(Debug, Default)]
struct Taken {
    /// In the order of their coming.
    guests: Vec<Guest>,
    /// How many of them each address has, without those who are kept.
    shares: HashMap<IpAddr, usize>,
    last: u64,
}

impl Taken {
    fn share(&self, from: IpAddr) -> usize {
        self.shares.get(&from).copied().unwrap_or(0)
    }

    fn add(&mut self, guest: Guest) {
        *self.shares.entry(guest.from).or_default() += 1;
        self.guests.push(guest);
    }

    fn remove(&mut self, index: usize) {
        let guest = self.guests.remove(index);
        if !guest.kept {
            self.drop_share(guest.from);
        }
    }

    fn keep(&mut self, index: usize) {
        let guest = &mut self.guests[index];
        if !std::mem::replace(&mut guest.kept, true) {
            let from = guest.from;
            self.drop_share(from);
        }
    }

    fn drop_share(&mut self, from: IpAddr) {
        if let Entry::Occupied(mut share) = self.shares.entry(from) {
            *share.get_mut() -= 1;
            if *share.get() == 0 {
                share.remove();
            }
        }
    }
}

#[derive(Debug)]
struct Guest {
    number: u64,
    from: IpAddr,
    /// Since when we wait for it; `None` while it waits for us.
    awaited: Option<Instant>,
    kept: bool,
    /// Dropped with the guest, which tells the holder of the place.
    _lost: oneshot::Sender<()>,
}

/// What a newcomer finds.
#[derive(Debug, PartialEq, Eq)]
enum Room {
    Free,
    /// The guest at this index must go.
    InsteadOf(usize),
    /// Nobody must go before this; `None` when all places are kept.
    Wait(Option<Instant>),
}

impl Crowd {
    /// So many places, at least one.
    pub(super) fn new(places: usize, patience: Duration) -> Self {
        let (places, taken, left) = (places.max(1), Mutex::default(), Notify::new());
        Self { shared: Arc::new(Shared { places, patience, taken, left }) }
    }

    /// A place, as soon as there is one.
    pub(super) async fn enter(&self, from: IpAddr) -> Place {
        let from = network(from);
        loop {
            // Before looking, so that who leaves in between is not missed.
            let left = self.shared.left.notified();
            match self.shared.enter_now(from, Instant::now()) {
                Ok(place) => return place,
                Err(Some(until)) => tokio::select! {
                    () = left => {}
                    () = sleep_until(until) => {}
                },
                Err(None) => left.await,
            }
        }
    }
}

impl Shared {
    /// A place, or when to look again.
    fn enter_now(self: &Arc<Self>, from: IpAddr, now: Instant) -> Result<Place, Option<Instant>> {
        let mut taken = self.lock();
        match self.find_room(&taken, from, now) {
            Room::Free => {}
            Room::InsteadOf(index) => taken.remove(index),
            Room::Wait(until) => return Err(until),
        }
        taken.last += 1;
        let (number, (lost, told)) = (taken.last, oneshot::channel());
        taken.add(Guest { number, from, awaited: Some(now), kept: false, _lost: lost });
        Ok(Place { number, shared: Arc::clone(self), told })
    }

    fn find_room(&self, taken: &Taken, from: IpAddr, now: Instant) -> Room {
        let guests = &taken.guests;
        if guests.len() < self.places {
            return Room::Free;
        }
        let own = taken.share(from);
        let movable = || guests.iter().enumerate().filter(|(_, guest)| !guest.kept);
        // Whoever comes again and again must not push out those who are slow and few.
        let awaited = movable().filter_map(|(index, guest)| Some((guest.awaited? + self.patience, index)));
        let awaited: Vec<_> = awaited.filter(|(_, index)| taken.share(guests[*index].from) >= own).collect();
        let late = awaited.iter().filter(|(end, _)| *end <= now).map(|(_, index)| *index);
        if let Some(index) = late.max_by_key(|index| (taken.share(guests[*index].from), Reverse(*index))) {
            return Room::InsteadOf(index);
        }
        let largest = taken.shares.values().copied().max().unwrap_or(0);
        if largest > own + 1 {
            let most = || movable().filter(|(_, guest)| taken.share(guest.from) == largest);
            // Nothing was done yet for one who says nothing, and least for who came last of the others.
            let silent = most().find(|(_, guest)| guest.awaited.is_some());
            if let Some((index, _)) = silent.or_else(|| most().next_back()) {
                return Room::InsteadOf(index);
            }
        }
        Room::Wait(awaited.iter().map(|(end, _)| *end).min())
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        // Nothing can panic half-way through a change.
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What one machine may be: an IPv4 address, or the /64 network in which an IPv6 host chooses its addresses.
pub(super) fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
        }
        v4 => v4,
    }
}

/// The place was needed for another.
#[derive(Debug, thiserror::Error)]
#[error("it took too long for the number of them")]
pub(super) struct Lost;

/// A place in the crowd, given back when it is dropped.
#[derive(Debug)]
pub(super) struct Place {
    number: u64,
    shared: Arc<Shared>,
    told: oneshot::Receiver<()>,
}

impl Place {
    /// From now on nobody else gets it before it is given back.
    pub(super) fn keep(&self) {
        self.update(Taken::keep);
    }

    /// It is we who are waited for now.
    pub(super) fn heard(&self) {
        self.update(|taken, index| taken.guests[index].awaited = None);
    }

    /// We wait for it again.
    pub(super) fn awaited(&self) {
        self.update(|taken, index| taken.guests[index].awaited = Some(Instant::now()));
        // It may be late one day, which whoever waits for a place does not know.
        self.shared.left.notify_one();
    }

    /// Changes the guest with this place, if it still has it.
    fn update(&self, change: impl FnOnce(&mut Taken, usize)) {
        let mut taken = self.shared.lock();
        // Numbers rise in the order of their coming.
        if let Ok(index) = taken.guests.binary_search_by_key(&self.number, |guest| guest.number) {
            change(&mut taken, index);
        }
    }

    /// Does `work` until somebody else gets the place. What is done by then is done, also at that moment.
    pub(super) async fn while_held<F: Future>(&mut self, work: F) -> Result<F::Output, Lost> {
        tokio::select! {
            biased;
            done = work => Ok(done),
            _ = &mut self.told => Err(Lost),
        }
    }

    /// Ready when somebody else got it. Not to be polled after that.
    pub(super) fn poll_lost(&mut self, context: &mut Context<'_>) -> Poll<()> {
        std::pin::Pin::new(&mut self.told).poll(context).map(drop)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.update(Taken::remove);
        self.shared.left.notify_one();
    }
}

#[cfg(test)]
mod tests;
