use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn host(last: u8) -> IpAddr {
    IpAddr::from([10, 0, 0, last])
}

fn shared(places: usize) -> Arc<Shared> {
    Crowd::new(places, SECOND).shared
}

fn is_lost(place: &mut Place) -> bool {
    place.poll_lost(&mut Context::from_waker(std::task::Waker::noop())).is_ready()
}

#[test]
fn a_newcomer_takes_from_those_who_have_more() {
    let (shared, now) = (shared(4), Instant::now());
    let enter = |from| shared.enter_now(host(from), now);
    let mut many: Vec<_> = (0..3).map(|_| enter(1).unwrap()).collect();
    let mut other = enter(2).unwrap();
    // The crowd's largest share shrinks to that of the newcomers, and no further.
    let mut third = enter(3).unwrap();
    assert!(is_lost(&mut many.remove(0)));
    assert_eq!(enter(1).unwrap_err(), Some(now + SECOND));
    let mut again = enter(2).unwrap_err();
    assert_eq!(again.take(), Some(now + SECOND));
    let _fourth = enter(4).unwrap();
    assert!(is_lost(&mut many.remove(0)));
    for place in many.iter_mut().chain([&mut other, &mut third]) {
        assert!(!is_lost(place));
    }
    assert!(enter(5).is_err());
    assert_eq!(shared.lock().guests.len(), 4);
}

#[test]
fn whoever_had_its_time_must_go_the_oldest_first() {
    let (shared, now) = (shared(2), Instant::now());
    let mut first = shared.enter_now(host(1), now).unwrap();
    let mut second = shared.enter_now(host(2), now + SECOND / 2).unwrap();
    assert_eq!(shared.enter_now(host(3), now + SECOND / 2).unwrap_err(), Some(now + SECOND));
    let _third = shared.enter_now(host(3), now + SECOND).unwrap();
    assert!(is_lost(&mut first) && !is_lost(&mut second));
}

#[test]
fn whoever_waits_for_us_is_not_late_and_the_last_of_them_must_go_for_others() {
    let (shared, now) = (shared(3), Instant::now());
    let enter = |from, at| shared.enter_now(host(from), at);
    let mut guests: Vec<_> = (0..3).map(|_| enter(1, now).unwrap()).collect();
    guests.iter().for_each(Place::heard);
    assert_eq!(enter(1, now + 9 * SECOND).unwrap_err(), None, "nobody will be late");
    let mut other = enter(2, now + 9 * SECOND).unwrap();
    assert!(is_lost(&mut guests[2]) && !is_lost(&mut guests[0]) && !is_lost(&mut guests[1]));
    // It has fewer places than those who come, however late it is.
    assert_eq!(enter(1, now + 99 * SECOND).unwrap_err(), None);
    guests[1].awaited();
    let mut third = enter(3, now).unwrap();
    assert!(is_lost(&mut guests[1]) && !is_lost(&mut other) && !is_lost(&mut third));
    let _fourth = enter(4, now + 99 * SECOND).unwrap();
    assert!(is_lost(&mut other) && !is_lost(&mut third) && !is_lost(&mut guests[0]));
}

#[test]
fn kept_places_are_nobody_elses_until_they_are_given_back() {
    let (shared, now) = (shared(2), Instant::now());
    let late = now + 100 * SECOND;
    let mut kept: Vec<_> = (0..2).map(|_| shared.enter_now(host(1), now).unwrap()).collect();
    kept.iter().for_each(Place::keep);
    assert_eq!(shared.enter_now(host(2), late).unwrap_err(), None);
    assert!(!kept.iter_mut().any(is_lost));
    kept.pop();
    let _place = shared.enter_now(host(2), late).unwrap();
}

#[test]
fn a_host_with_many_addresses_is_one() {
    let one: IpAddr = "2001:db8:1:2:aaaa::1".parse().unwrap();
    let two: IpAddr = "2001:db8:1:2:bbbb::2".parse().unwrap();
    assert_eq!(network(one), network(two));
    assert_ne!(network(one), network("2001:db8:1:3::1".parse().unwrap()));
    assert_eq!(network("::ffff:10.0.0.1".parse().unwrap()), host(1));
}

#[tokio::test(start_paused = true)]
async fn those_who_wait_get_in_when_somebody_leaves_or_had_its_time() {
    let crowd = Crowd::new(1, SECOND);
    let begin = Instant::now();
    let first = crowd.enter(host(1)).await;
    let (second, ()) = tokio::join!(crowd.enter(host(2)), async { drop(first) });
    assert_eq!(Instant::now(), begin);
    let mut second = second;
    let third = crowd.enter(host(3)).await;
    assert!(Instant::now() >= begin + SECOND && is_lost(&mut second));
    third.keep();
    let (_fourth, ()) = tokio::join!(crowd.enter(host(4)), async {
        tokio::time::advance(100 * SECOND).await;
        drop(third);
    });
}
