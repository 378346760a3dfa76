//! A bounded number of places for those who did not prove who they are, shared out by address: nobody keeps
//! the others out by being many.
//!
//! When all places are taken, a newcomer gets that of whoever is there longest from the address that has most
//! of them: at once if the newcomer's address has fewer even with it, else once the other had its patience.

use std::collections::HashMap;
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
    last: u64,
}

#[derive(Debug)]
struct Guest {
    number: u64,
    from: IpAddr,
    since: Instant,
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
        let taken = Mutex::default();
        Self { shared: Arc::new(Shared { places: places.max(1), patience, taken, left: Notify::new() }) }
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
        match find_room(&taken.guests, self.places, self.patience, from, now) {
            Room::Free => {}
            Room::InsteadOf(index) => drop(taken.guests.remove(index)),
            Room::Wait(until) => return Err(until),
        }
        taken.last += 1;
        let (number, (lost, told)) = (taken.last, oneshot::channel());
        taken.guests.push(Guest { number, from, since: now, kept: false, _lost: lost });
        Ok(Place { number, shared: Arc::clone(self), told })
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        // Nothing can panic half-way through a change.
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn find_room(guests: &[Guest], places: usize, patience: Duration, from: IpAddr, now: Instant) -> Room {
    if guests.len() < places {
        return Room::Free;
    }
    let mut shares: HashMap<IpAddr, usize> = HashMap::new();
    let movable = || guests.iter().enumerate().filter(|(_, guest)| !guest.kept);
    movable().for_each(|(_, guest)| *shares.entry(guest.from).or_default() += 1);
    let largest = shares.values().copied().max().unwrap_or(0);
    let Some((index, oldest)) = movable().find(|(_, guest)| shares[&guest.from] == largest) else {
        return Room::Wait(None);
    };
    let own = shares.get(&from).copied().unwrap_or(0);
    let until = oldest.since + patience;
    if largest > own + 1 || until <= now { Room::InsteadOf(index) } else { Room::Wait(Some(until)) }
}

/// What one machine may be: an IPv4 address, or the /64 network in which an IPv6 host chooses its addresses.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
        }
        v4 => v4,
    }
}

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
        let mut taken = self.shared.lock();
        if let Some(guest) = taken.guests.iter_mut().find(|guest| guest.number == self.number) {
            guest.kept = true;
        }
    }

    /// Ends when somebody else got it.
    pub(super) async fn lost(&mut self) {
        let _ = (&mut self.told).await;
    }

    /// As [`Place::lost`], to be polled. Not after it was ready.
    pub(super) fn poll_lost(&mut self, context: &mut Context<'_>) -> Poll<()> {
        std::pin::Pin::new(&mut self.told).poll(context).map(drop)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.shared.lock().guests.retain(|guest| guest.number != self.number);
        self.shared.left.notify_one();
    }
}

#[cfg(test)]
mod tests;
