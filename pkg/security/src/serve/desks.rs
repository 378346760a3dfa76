//! Where handshakes are answered: so few at once that all are done within moments, however many come together.
//!
//! A desk is free for an address while it has fewer of them than are free. So a single address gets half of them, two
//! get a third each in time, and somebody else finds one at once, however many others come. Of those who wait, the next
//! one is of the address with fewest desks, and among these the one that came first.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use super::crowd::network;

/// The desks.
#[derive(Debug)]
pub(super) struct Desks {
    office: Arc<Office>,
}

#[derive(Debug)]
struct Office {
    rooms: Mutex<Rooms>,
}

#[derive(Debug, Default)]
struct Rooms {
    free: usize,
    /// Of every address that is at a desk or waits for one.
    lines: HashMap<IpAddr, Line>,
    last: u64,
}

#[derive(Debug, Default)]
struct Line {
    at_desks: usize,
    /// By their numbers, which rise in the order of their coming.
    waiting: BTreeMap<u64, oneshot::Sender<()>>,
}

impl Desks {
    /// So many desks, at least one.
    pub(super) fn new(desks: usize) -> Self {
        let rooms = Mutex::new(Rooms { free: desks.max(1), ..Rooms::default() });
        Self { office: Arc::new(Office { rooms }) }
    }

    /// A desk, when it is one's turn. Who no longer waits for that is no longer in the line.
    pub(super) async fn enter(&self, from: IpAddr) -> Desk {
        let (desk, called) = self.line_up(from);
        // Only who leaves the line is never called.
        let _ = called.await;
        desk
    }

    fn line_up(&self, from: IpAddr) -> (Desk, oneshot::Receiver<()>) {
        let (from, (call, called)) = (network(from), oneshot::channel());
        let mut rooms = self.office.lock();
        rooms.last += 1;
        let number = rooms.last;
        rooms.lines.entry(from).or_default().waiting.insert(number, call);
        rooms.call();
        (Desk { number, from, office: Arc::clone(&self.office) }, called)
    }
}

impl Office {
    fn lock(&self) -> MutexGuard<'_, Rooms> {
        // Nothing can panic half-way through a change.
        self.rooms.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Rooms {
    /// Calls those for whom there is a desk.
    fn call(&mut self) {
        loop {
            let waiting = self.lines.values_mut().filter(|line| line.at_desks < self.free);
            let next = waiting.filter_map(Line::first).min_by_key(|(line, number)| (line.at_desks, *number));
            let Some((line, number)) = next else { return };
            let Some(next) = line.waiting.remove(&number) else { return };
            line.at_desks += 1;
            self.free -= 1;
            // Whoever does not hear it any more is about to leave.
            let _ = next.send(());
        }
    }
}

impl Line {
    /// Itself with the number of whoever is first in it.
    fn first(&mut self) -> Option<(&mut Self, u64)> {
        let number = *self.waiting.first_key_value()?.0;
        Some((self, number))
    }
}

/// A desk, or a place in the line for one; given back when it is dropped.
#[derive(Debug)]
pub(super) struct Desk {
    number: u64,
    from: IpAddr,
    office: Arc<Office>,
}

impl Drop for Desk {
    fn drop(&mut self) {
        let mut rooms = self.office.lock();
        if let Some(line) = rooms.lines.get_mut(&self.from) {
            let waited = line.waiting.remove(&self.number).is_some();
            line.at_desks -= usize::from(!waited);
            if line.at_desks == 0 && line.waiting.is_empty() {
                rooms.lines.remove(&self.from);
            }
            rooms.free += usize::from(!waited);
        }
        rooms.call();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    /// Who came, and hears when it is called.
    struct Guest {
        _desk: Desk,
        called: oneshot::Receiver<()>,
    }

    impl Guest {
        fn is_called(&mut self) -> bool {
            self.called.try_recv().is_ok()
        }
    }

    fn come(desks: &Desks, from: u8) -> Guest {
        let (desk, called) = desks.line_up(host(from));
        Guest { _desk: desk, called }
    }

    fn many(desks: &Desks, from: u8, number: usize) -> Vec<Guest> {
        (0..number).map(|_| come(desks, from)).collect()
    }

    fn called(guests: &mut [Guest]) -> usize {
        guests.iter_mut().map(|guest| usize::from(guest.is_called())).sum()
    }

    #[test]
    fn an_address_has_no_more_desks_than_are_left_for_others() {
        let rows: &[(usize, &[usize])] =
            &[(8, &[4]), (9, &[5]), (9, &[5, 2, 1, 1]), (1, &[1, 0]), (3, &[2, 1, 0]), (0, &[1])];
        for (places, wanted) in rows {
            let desks = Desks::new(*places);
            let mut crowds: Vec<_> = (1..).take(wanted.len()).map(|from| many(&desks, from, 20)).collect();
            let found: Vec<_> = crowds.iter_mut().map(|crowd| called(crowd)).collect();
            assert_eq!(found, *wanted, "of {places}");
        }
    }

    #[test]
    fn whoever_is_few_comes_first_and_then_whoever_came_first() {
        let desks = Desks::new(2);
        let (first, second) = (come(&desks, 1), come(&desks, 2));
        let mut waiting: Vec<_> = [1, 1, 3, 4, 3].into_iter().map(|from| Some(come(&desks, from))).collect();
        let mut called = || waiting.iter_mut().position(|guest| guest.as_mut().is_some_and(Guest::is_called));
        assert_eq!(called(), None);
        drop(second);
        assert_eq!(called(), Some(2));
        let mut leave = |place: usize| {
            waiting[place] = None;
            waiting.iter_mut().position(|guest| guest.as_mut().is_some_and(Guest::is_called))
        };
        assert_eq!((leave(2), leave(3)), (Some(3), Some(4)));
        assert_eq!(leave(4), None, "who has one of two desks leaves the other one to others");
        drop(first);
        assert_eq!((leave(2), leave(0)), (Some(0), Some(1)));
    }

    #[test]
    fn nothing_is_left_of_those_who_left_the_line_or_their_desk() {
        let desks = Desks::new(4);
        let (mut crowd, mut other) = (many(&desks, 1, 10), many(&desks, 2, 10));
        assert_eq!((called(&mut crowd), called(&mut other)), (2, 1));
        // Those who wait leave first.
        crowd.reverse();
        drop((crowd, other));
        let rooms = desks.office.lock();
        assert_eq!((rooms.free, rooms.lines.len()), (4, 0));
    }
}
