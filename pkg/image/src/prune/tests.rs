use super::*;
use crate::digest::Digest;

const DAY: u64 = 86_400_000;
const NOW: Timestamp = Timestamp(1000 * DAY);
const ROOMY: Disk = Disk { used: 0, total: 1000 };

/// An image that came long ago and was used last `days` ago.
fn image(name: &str, days: u64, parts: &[(&str, u64)]) -> Listed {
    let part = |(name, bytes): &(&str, u64)| (Part::Layer(Digest::of(name.as_bytes())), *bytes);
    let (created, last_used) = (Timestamp(0), Timestamp(NOW.0 - days * DAY));
    let parts = parts.iter().map(part).collect();
    Listed {
        reference: format!("r.io/{name}"),
        digest: Digest::of(name.as_bytes()),
        created,
        changed: created,
        last_used,
        parts,
    }
}

fn policy() -> PrunePolicy {
    PrunePolicy {
        max_age: Some(Duration::from_secs(14 * 86_400)),
        grace: Duration::from_secs(600),
        pressure_high: 80,
        pressure_low: 50,
        cap: 100,
    }
}

fn plan(
    images: &[Listed],
    in_use: &[&str],
    disk: Disk,
    policy: &PrunePolicy,
) -> Vec<(String, PruneReason, u64)> {
    let in_use: Vec<Reference> = in_use.iter().map(|name| name.parse().unwrap()).collect();
    let doomed = plan_prune(images, &in_use, NOW, disk, policy);
    let short = |name: &str| name.trim_start_matches("r.io/").to_owned();
    doomed.iter().map(|each| (short(&each.image.reference), each.reason, each.frees)).collect()
}

fn names(found: &[(String, PruneReason, u64)]) -> Vec<&str> {
    found.iter().map(|(name, ..)| name.as_str()).collect()
}

#[test]
fn what_nobody_used_for_long_goes_the_oldest_first() {
    let images = [
        image("young:1", 13, &[("a", 5)]),
        image("old:1", 14, &[("b", 5)]),
        image("used:1", 40, &[("c", 5)]),
        image("older:1", 30, &[("d", 7)]),
    ];
    let found = plan(&images, &["r.io/used:1"], ROOMY, &policy());
    let want = [("older:1".to_owned(), PruneReason::Unused, 7), ("old:1".to_owned(), PruneReason::Unused, 5)];
    assert_eq!(found, want);
    let forever = PrunePolicy { max_age: None, ..policy() };
    assert_eq!(plan(&images, &[], ROOMY, &forever), []);
    let all = PrunePolicy { max_age: Some(Duration::ZERO), grace: Duration::ZERO, ..policy() };
    let just_used = [image("now:1", 0, &[])];
    assert_eq!(names(&plan(&just_used, &[], ROOMY, &all)), ["now:1"]);
    assert_eq!(plan(&just_used, &["r.io/now:1"], ROOMY, &all), []);
    assert_eq!(plan(&[], &[], ROOMY, &policy()), []);
}

#[test]
fn under_pressure_the_least_recently_used_go_until_there_is_room() {
    let images: Vec<Listed> =
        (1..=5).map(|day| image(&format!("i{day}:1"), day, &[(&format!("l{day}"), 100)])).collect();
    for (used, want) in [
        (799, &[][..]),
        // From 800 to below 500 four images have to go.
        (800, &["i5:1", "i4:1", "i3:1", "i2:1"]),
        (1000, &["i5:1", "i4:1", "i3:1", "i2:1", "i1:1"]),
    ] {
        let found = plan(&images, &[], Disk { used, total: 1000 }, &policy());
        assert_eq!(names(&found), want, "{used}");
        assert!(found.iter().all(|(_, reason, frees)| (*reason, *frees) == (PruneReason::Pressure, 100)));
    }
    let full = Disk { used: 1000, total: 1000 };
    let used = ["r.io/i5:1", "r.io/i3:1"];
    assert_eq!(names(&plan(&images, &used, full, &policy())), ["i4:1", "i2:1", "i1:1"]);
    let unknown = Disk { used: 0, total: 0 };
    assert_eq!(plan(&images, &[], unknown, &policy()), []);
}

#[test]
fn what_old_images_give_back_counts_against_the_pressure() {
    let images = [image("old:1", 20, &[("a", 400)]), image("young:1", 2, &[("b", 400)])];
    let found = plan(&images, &[], Disk { used: 850, total: 1000 }, &policy());
    assert_eq!(names(&found), ["old:1"]);
}

#[test]
fn a_shared_layer_is_given_back_by_the_last_that_has_it() {
    let images = [
        image("a:1", 5, &[("base", 300), ("a", 10)]),
        image("b:1", 4, &[("base", 300), ("b", 10)]),
        image("c:1", 3, &[("c", 10)]),
        image("d:1", 2, &[("d", 10)]),
    ];
    let tight = Disk { used: 800, total: 1000 };
    let gains = |found: Vec<(String, PruneReason, u64)>| found.iter().map(|each| each.2).collect::<Vec<_>>();
    let found = plan(&images, &[], tight, &policy());
    assert_eq!(names(&found), ["a:1", "b:1"]);
    assert_eq!(gains(found), [10, 310]);
    // In use, it keeps the layer; the others do what they can.
    let found = plan(&images, &["r.io/b:1"], tight, &policy());
    assert_eq!(names(&found), ["a:1", "c:1", "d:1"]);
    assert_eq!(gains(found), [10, 10, 10]);
}

#[test]
fn a_tick_has_a_cap() {
    let images: Vec<Listed> = (20..40).map(|day| image(&format!("i{day}:1"), day, &[])).collect();
    let few = PrunePolicy { cap: 3, ..policy() };
    assert_eq!(names(&plan(&images, &[], ROOMY, &few)), ["i39:1", "i38:1", "i37:1"]);
    assert_eq!(plan(&images, &[], ROOMY, &PrunePolicy { cap: 0, ..policy() }), []);
}

#[test]
fn within_its_grace_nothing_goes() {
    let full = Disk { used: 1000, total: 1000 };
    let ago = |seconds: u64| Timestamp(NOW.0 - seconds * 1000);
    let pulled = |at: Timestamp| Listed { changed: at, ..image("x:1", 100, &[("x", 1)]) };
    let used = |at: Timestamp| Listed { last_used: at, ..image("x:1", 100, &[("x", 1)]) };
    for (image, goes) in [
        (pulled(ago(599)), false),
        (pulled(ago(600)), true),
        (used(ago(599)), false),
        (used(ago(600)), true),
        // A clock that was wrong.
        (pulled(Timestamp(NOW.0 + DAY)), false),
        (used(Timestamp(NOW.0 + DAY)), false),
    ] {
        assert_eq!(
            plan(std::slice::from_ref(&image), &[], full, &policy()).len(),
            usize::from(goes),
            "{image:?}"
        );
    }
}

#[test]
fn an_image_is_in_use_by_tag_and_by_digest() {
    let digest = Digest::of(b"web:1");
    let tagged = image("web:1", 100, &[]);
    let kept = Listed { reference: format!("r.io/web@{digest}"), ..tagged.clone() };
    let foreign = Listed { reference: "sha256:0123".to_owned(), ..tagged.clone() };
    for (image, in_use, stays) in [
        (&tagged, "r.io/web:1".to_owned(), true),
        (&tagged, format!("r.io/web:1@{digest}"), true),
        (&tagged, format!("r.io/web@{digest}"), true),
        (&tagged, format!("r.io/web:2@{digest}"), true),
        (&tagged, format!("r.io/other@{digest}"), false),
        (&tagged, format!("r.io/web:1@{}", Digest::of(b"new")), false),
        (&tagged, "r.io/web:2".to_owned(), false),
        (&kept, format!("r.io/web:1@{digest}"), true),
        (&kept, "r.io/web:1".to_owned(), false),
        (&foreign, format!("r.io/web@{digest}"), false),
    ] {
        let found = plan(std::slice::from_ref(image), &[&in_use], ROOMY, &policy());
        assert_eq!(found.is_empty(), stays, "{} {in_use}", image.reference);
    }
}
