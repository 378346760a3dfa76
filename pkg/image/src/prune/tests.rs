use warren_registry::Digest;

use super::*;

const DAY: u64 = 86_400_000;
const NOW: Timestamp = Timestamp(1000 * DAY);
const HALF_FULL: FilesystemUsage = FilesystemUsage { used: 0, total: 1000 };

/// An image that was created long ago and last used `days` ago.
fn image(name: &str, days: u64, parts: &[(&str, u64)]) -> ListedImage {
    let part = |(name, bytes): &(&str, u64)| (ImagePart::Layer(Digest::of(name.as_bytes())), *bytes);
    let (created, last_used) = (Timestamp(0), Timestamp(NOW.0 - days * DAY));
    let parts = parts.iter().map(part).collect();
    ListedImage {
        reference: format!("r.io/{name}"),
        digest: Digest::of(name.as_bytes()),
        created,
        updated: created,
        last_used,
        parts,
    }
}

fn policy() -> PrunePolicy {
    PrunePolicy {
        max_age: Some(Duration::from_secs(14 * 86_400)),
        grace: Duration::from_secs(600),
        high_watermark: 80,
        low_watermark: 50,
        max_removals: 100,
    }
}

fn plan(
    images: &[ListedImage],
    in_use: &[&str],
    disk: FilesystemUsage,
    policy: &PrunePolicy,
) -> Vec<(String, PruneReason, u64)> {
    let in_use: Vec<Reference> = in_use.iter().map(|name| name.parse().unwrap()).collect();
    let candidates = plan_prune(images, &in_use, NOW, disk, policy);
    let short = |name: &str| name.trim_start_matches("r.io/").to_owned();
    candidates.iter().map(|each| (short(&each.image.reference), each.reason, each.freed_bytes)).collect()
}

fn names(found: &[(String, PruneReason, u64)]) -> Vec<&str> {
    found.iter().map(|(name, ..)| name.as_str()).collect()
}

#[test]
fn expired_images_are_removed_oldest_first() {
    let images = [
        image("young:1", 13, &[("a", 5)]),
        image("old:1", 14, &[("b", 5)]),
        image("used:1", 40, &[("c", 5)]),
        image("older:1", 30, &[("d", 7)]),
    ];
    let found = plan(&images, &["r.io/used:1"], HALF_FULL, &policy());
    let want = [("older:1".to_owned(), PruneReason::Unused, 7), ("old:1".to_owned(), PruneReason::Unused, 5)];
    assert_eq!(found, want);
    let forever = PrunePolicy { max_age: None, ..policy() };
    assert_eq!(plan(&images, &[], HALF_FULL, &forever), []);
    let all = PrunePolicy { max_age: Some(Duration::ZERO), grace: Duration::ZERO, ..policy() };
    let just_used = [image("now:1", 0, &[])];
    assert_eq!(names(&plan(&just_used, &[], HALF_FULL, &all)), ["now:1"]);
    assert_eq!(plan(&just_used, &["r.io/now:1"], HALF_FULL, &all), []);
    assert_eq!(plan(&[], &[], HALF_FULL, &policy()), []);
}

#[test]
fn disk_pressure_removes_least_recently_used_until_low_watermark() {
    let images: Vec<ListedImage> =
        (1..=5).map(|day| image(&format!("i{day}:1"), day, &[(&format!("l{day}"), 100)])).collect();
    for (used, want) in [
        (799, &[][..]),
        // From 800 to below 500 requires the removal of four images.
        (800, &["i5:1", "i4:1", "i3:1", "i2:1"]),
        (1000, &["i5:1", "i4:1", "i3:1", "i2:1", "i1:1"]),
    ] {
        let found = plan(&images, &[], FilesystemUsage { used, total: 1000 }, &policy());
        assert_eq!(names(&found), want, "{used}");
        assert!(found.iter().all(|(_, reason, frees)| (*reason, *frees) == (PruneReason::DiskPressure, 100)));
    }
    let full = FilesystemUsage { used: 1000, total: 1000 };
    let used = ["r.io/i5:1", "r.io/i3:1"];
    assert_eq!(names(&plan(&images, &used, full, &policy())), ["i4:1", "i2:1", "i1:1"]);
    let unknown = FilesystemUsage { used: 0, total: 0 };
    assert_eq!(plan(&images, &[], unknown, &policy()), []);
}

#[test]
fn expired_images_reduce_disk_pressure() {
    let images = [image("old:1", 20, &[("a", 400)]), image("young:1", 2, &[("b", 400)])];
    let found = plan(&images, &[], FilesystemUsage { used: 850, total: 1000 }, &policy());
    assert_eq!(names(&found), ["old:1"]);
}

#[test]
fn shared_layer_is_freed_with_last_user() {
    let images = [
        image("a:1", 5, &[("base", 300), ("a", 10)]),
        image("b:1", 4, &[("base", 300), ("b", 10)]),
        image("c:1", 3, &[("c", 10)]),
        image("d:1", 2, &[("d", 10)]),
    ];
    let tight = FilesystemUsage { used: 800, total: 1000 };
    let gains = |found: Vec<(String, PruneReason, u64)>| found.iter().map(|each| each.2).collect::<Vec<_>>();
    let found = plan(&images, &[], tight, &policy());
    assert_eq!(names(&found), ["a:1", "b:1"]);
    assert_eq!(gains(found), [10, 310]);
    // An image in use keeps the layer; the others are removed as needed.
    let found = plan(&images, &["r.io/b:1"], tight, &policy());
    assert_eq!(names(&found), ["a:1", "c:1", "d:1"]);
    assert_eq!(gains(found), [10, 10, 10]);
}

#[test]
fn removals_per_run_are_bounded() {
    let images: Vec<ListedImage> = (20..40).map(|day| image(&format!("i{day}:1"), day, &[])).collect();
    let few = PrunePolicy { max_removals: 3, ..policy() };
    assert_eq!(names(&plan(&images, &[], HALF_FULL, &few)), ["i39:1", "i38:1", "i37:1"]);
    assert_eq!(plan(&images, &[], HALF_FULL, &PrunePolicy { max_removals: 0, ..policy() }), []);
}

#[test]
fn image_within_grace_is_kept() {
    let full = FilesystemUsage { used: 1000, total: 1000 };
    let ago = |seconds: u64| Timestamp(NOW.0 - seconds * 1000);
    let pulled = |at: Timestamp| ListedImage { updated: at, ..image("x:1", 100, &[("x", 1)]) };
    let used = |at: Timestamp| ListedImage { last_used: at, ..image("x:1", 100, &[("x", 1)]) };
    for (image, goes) in [
        (pulled(ago(599)), false),
        (pulled(ago(600)), true),
        (used(ago(599)), false),
        (used(ago(600)), true),
        // A wrong clock.
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
fn image_is_in_use_by_tag_and_digest() {
    let digest = Digest::of(b"web:1");
    let tagged = image("web:1", 100, &[]);
    let kept = ListedImage { reference: format!("r.io/web@{digest}"), ..tagged.clone() };
    let foreign = ListedImage { reference: "sha256:0123".to_owned(), ..tagged.clone() };
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
        let found = plan(std::slice::from_ref(image), &[&in_use], HALF_FULL, &policy());
        assert_eq!(found.is_empty(), stays, "{} {in_use}", image.reference);
    }
}
