//! Bounds how many handshakes are under way, and shares them between source addresses.
//!
//! An address gets a permit as long as it holds fewer permits than are free. So one address gets at most half of them,
//! two get a third each, and a further address finds a free one at once, however many connections the others open. Of
//! the waiting connections the next one is from the address that holds the fewest permits, and among these the one that
//! came first. Waiting connections are bounded too: when there are too many, the newest one of the address with most of
//! them is refused.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

#[derive(Clone, Debug)]
pub(super) struct HandshakeLimiter {
    state: Arc<Mutex<LimiterState>>,
}

#[derive(Debug)]
struct LimiterState {
    free: usize,
    max_waiting: usize,
    waiting: usize,
    addresses: HashMap<IpAddr, SourceAddress>,
    last: u64,
}

/// The connections of one address, by numbers that rise in the order of arrival.
#[derive(Debug, Default)]
struct SourceAddress {
    permits: BTreeSet<u64>,
    waiting: BTreeMap<u64, oneshot::Sender<()>>,
}

impl HandshakeLimiter {
    /// At least one permit.
    pub(super) fn new(permits: usize, max_waiting: usize) -> Self {
        let (free, addresses) = (permits.max(1), HashMap::new());
        Self {
            state: Arc::new(Mutex::new(LimiterState { free, max_waiting, waiting: 0, addresses, last: 0 })),
        }
    }

    /// Waits for a permit; `None` when too many connections wait already. Cancel safe.
    pub(super) async fn acquire(&self, address: IpAddr) -> Option<Permit> {
        let (permit, granted) = self.enqueue(address);
        granted.await.is_ok().then_some(permit)
    }

    fn enqueue(&self, address: IpAddr) -> (Permit, oneshot::Receiver<()>) {
        let (address, (grant, granted)) = (source_network(address), oneshot::channel());
        let mut state = self.lock();
        state.last += 1;
        let number = state.last;
        state.addresses.entry(address).or_default().waiting.insert(number, grant);
        state.waiting += 1;
        state.grant();
        state.refuse_excess();
        (Permit { number, address, limiter: self.clone() }, granted)
    }

    fn lock(&self) -> MutexGuard<'_, LimiterState> {
        // No change can panic half-way.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LimiterState {
    /// Gives permits to the waiting connections that may have one.
    fn grant(&mut self) {
        while let Some((address, number)) = self.next() {
            let grant = address.waiting.remove(&number);
            address.permits.insert(number);
            (self.waiting, self.free) = (self.waiting - 1, self.free - 1);
            // A receiver that is gone drops its permit next.
            let _ = grant.map(|grant| grant.send(()));
        }
    }

    fn next(&mut self) -> Option<(&mut SourceAddress, u64)> {
        let free = self.free;
        let eligible = self.addresses.values_mut().filter(|address| address.permits.len() < free);
        let first =
            |address: &mut SourceAddress| address.waiting.first_key_value().map(|(number, _)| *number);
        let eligible = eligible.filter_map(|address| first(address).map(|number| (address, number)));
        eligible.min_by_key(|(address, number)| (address.permits.len(), *number))
    }

    /// Dropping the sender tells the connection.
    fn refuse_excess(&mut self) {
        while self.waiting > self.max_waiting {
            let Some(largest) = self.addresses.values_mut().max_by_key(|one| one.waiting.len()) else {
                return;
            };
            self.waiting -= usize::from(largest.waiting.pop_last().is_some());
        }
    }

    fn release(&mut self, address: IpAddr, number: u64) {
        let Some(share) = self.addresses.get_mut(&address) else { return };
        self.waiting -= usize::from(share.waiting.remove(&number).is_some());
        self.free += usize::from(share.permits.remove(&number));
        if share.permits.is_empty() && share.waiting.is_empty() {
            self.addresses.remove(&address);
        }
        self.grant();
    }
}

/// A permit, or the place in the queue for one; released when dropped.
#[derive(Debug)]
pub(super) struct Permit {
    number: u64,
    address: IpAddr,
    limiter: HandshakeLimiter,
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.limiter.lock().release(self.address, self.number);
    }
}

/// What counts as one source: an IPv4 address, or the /64 network in which an IPv6 host chooses its addresses.
fn source_network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
        }
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use oneshot::error::TryRecvError;

    use super::*;

    fn host(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    /// A queued connection.
    struct Queued {
        _permit: Permit,
        granted: oneshot::Receiver<()>,
    }

    impl Queued {
        /// Whether it was granted since the last look.
        fn is_granted(&mut self) -> bool {
            self.granted.try_recv().is_ok()
        }
    }

    fn enqueue(limiter: &HandshakeLimiter, from: u8) -> Queued {
        let (permit, granted) = limiter.enqueue(host(from));
        Queued { _permit: permit, granted }
    }

    fn enqueue_many(limiter: &HandshakeLimiter, from: u8, number: usize) -> Vec<Queued> {
        (0..number).map(|_| enqueue(limiter, from)).collect()
    }

    fn granted(queued: &mut [Queued]) -> usize {
        queued.iter_mut().map(|one| usize::from(one.is_granted())).sum()
    }

    #[test]
    fn address_gets_no_more_permits_than_remain_for_others() {
        let rows: &[(usize, &[usize])] =
            &[(8, &[4]), (9, &[5]), (9, &[5, 2, 1, 1]), (1, &[1, 0]), (3, &[2, 1, 0]), (0, &[1])];
        for (permits, expected) in rows {
            let limiter = HandshakeLimiter::new(*permits, 100);
            let queue = |from| enqueue_many(&limiter, from, 20);
            let mut addresses: Vec<_> = (1..).take(expected.len()).map(queue).collect();
            let found: Vec<_> = addresses.iter_mut().map(|queued| granted(queued)).collect();
            assert_eq!(found, *expected, "of {permits}");
        }
    }

    #[test]
    fn address_with_fewest_permits_is_next_then_the_first_to_arrive() {
        let limiter = HandshakeLimiter::new(2, 100);
        let (first, second) = (enqueue(&limiter, 1), enqueue(&limiter, 2));
        let mut waiting: Vec<_> =
            [1, 1, 3, 4, 3].into_iter().map(|from| Some(enqueue(&limiter, from))).collect();
        let position = |waiting: &mut Vec<Option<Queued>>| {
            waiting.iter_mut().position(|one| one.as_mut().is_some_and(Queued::is_granted))
        };
        assert_eq!(position(&mut waiting), None);
        drop(second);
        assert_eq!(position(&mut waiting), Some(2));
        let mut release = |place: usize| {
            waiting[place] = None;
            position(&mut waiting)
        };
        assert_eq!((release(2), release(3)), (Some(3), Some(4)));
        assert_eq!(release(4), None, "an address with one of two permits leaves the other one to others");
        drop(first);
        assert_eq!((release(2), release(0)), (Some(0), Some(1)));
    }

    #[test]
    fn newest_of_the_largest_queue_is_refused_when_too_many_wait() {
        let limiter = HandshakeLimiter::new(1, 3);
        let mut large = enqueue_many(&limiter, 1, 4);
        assert_eq!(granted(&mut large), 1);
        let mut other = enqueue(&limiter, 2);
        let states: Vec<_> = large.iter_mut().map(|one| one.granted.try_recv()).collect();
        let (waits, refused) = (TryRecvError::Empty, TryRecvError::Closed);
        assert_eq!(states[1..], [Err(waits.clone()), Err(waits.clone()), Err(refused)]);
        assert_eq!(other.granted.try_recv(), Err(waits));
        drop(large);
        assert!(other.is_granted());
    }

    #[test]
    fn closed_connections_leave_nothing() {
        let limiter = HandshakeLimiter::new(4, 8);
        let (mut many, mut other) = (enqueue_many(&limiter, 1, 10), enqueue_many(&limiter, 2, 10));
        assert_eq!((granted(&mut many), granted(&mut other)), (2, 1));
        // The waiting ones leave first.
        many.reverse();
        drop((many, other));
        let state = limiter.lock();
        assert_eq!((state.free, state.waiting, state.addresses.len()), (4, 0, 0));
    }

    #[test]
    fn ipv6_hosts_of_one_network_are_one_address() {
        let network = |text: &str| source_network(text.parse().unwrap());
        assert_eq!(network("2001:db8:1:2:3::4"), network("2001:db8:1:2:ffff::1"));
        assert_ne!(network("2001:db8:1:2::1"), network("2001:db8:1:3::1"));
        assert_eq!(network("::ffff:10.0.0.7"), network("10.0.0.7"));
    }
}
