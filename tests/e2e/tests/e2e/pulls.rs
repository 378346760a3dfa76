//! Images from a registry on another host: pulled once, pinned, listed, removed; and every way in which it fails.

use std::net::SocketAddr;

use warren_testkit::image::{Image, Layer};
use warren_testkit::node::Settings;
use warren_testkit::registry::{PASSWORD, Registry, USER};
use warren_testkit::wait::eventually;

use crate::e2e::task;
use crate::e2e::world::{SOON, World};

const FAILED: i32 = 1;
const USAGE: i32 = 2;
const PORT: u16 = 5000;
/// Nothing listens there.
const NOBODY: u16 = 5007;

/// A node that trusts the registry of the host beside it, and that registry.
struct Shop {
    registry: Registry,
    world: World,
}

/// The first host of a lab is the node's, the second its neighbour.
fn trusting() -> Settings {
    let hosts = format!("10.77.0.2:{PORT},10.77.0.2:{NOBODY}");
    Settings::default().argument("--insecure-registry").argument(&hosts)
}

impl Shop {
    fn open() -> Shop {
        let world = World::with(trusting());
        let address = SocketAddr::new(world.neighbour.address().into(), PORT);
        let registry = Registry::start_at(address, |program| world.neighbour.command(program));
        Shop { registry, world }
    }

    fn push(&self, name: &str, text: &str) -> String {
        let image = Image::busybox("warren.local/x:1").entrypoint(["sh", "-c"]);
        let image = image.arguments([format!("echo {text}; trap exit TERM; sleep 1000 & wait")]);
        let image = image.layer(Layer::new().file("/ballast", vec![7; 200_000], 0o644));
        self.registry.push(name, "1", &image.oci_archive())
    }

    fn says(&self, service: &str, wanted: &str) {
        let task = self.world.serving(service, 1).remove(0);
        eventually(SOON, &format!("{service} to say {wanted:?}"), || {
            let said = task::output(&self.world.node, &task);
            if said.trim_end() == wanted { Ok(()) } else { Err(said) }
        });
    }
}

#[test]
fn an_image_is_pulled_listed_pruned_and_pulled_again() {
    let shop = Shop::open();
    let (world, reference) = (&shop.world, shop.push("shop/web", "one"));
    world.ok(&format!("service create web --image {reference}"));
    shop.says("web", "one");
    let images = || world.warren().json(&["image", "ls"]).to_string();
    assert!(images().contains(&reference), "{}", images());
    // The tag moves; what is here is enough, unless it is told to ask.
    shop.push("shop/web", "two");
    world.ok(&format!("service create same --image {reference}"));
    shop.says("same", "one");
    world.ok(&format!("service create newer --image {reference} --pull always"));
    shop.says("newer", "two");
    world.ok("service update web --force --pull always");
    shop.says("web", "two");
    // Used images stay, unused ones go.
    let other = shop.push("shop/other", "other");
    world.ok(&format!("image pull {other}"));
    assert!(images().contains(&other), "{}", images());
    world.ok("image prune --force");
    assert!(!images().contains(&other) && images().contains(&reference), "{}", images());
    world.ok("service rm web same newer");
    eventually(SOON, "the image to be unused", || {
        world.ok("image prune --force");
        if images().contains(&reference) { Err(images()) } else { Ok(()) }
    });
    world.ok(&format!("service create web --image {reference}"));
    shop.says("web", "two");
}

#[test]
fn a_pull_that_cannot_be_says_why_and_one_that_can_later_is_done_later() {
    let mut shop = Shop::open();
    let reference = shop.push("shop/web", "here");
    let host = shop.registry.host();
    let world = &shop.world;
    let why = |name: &str, state: &str, mentions: &str| {
        eventually(SOON, &format!("{name} to be {state} and to mention {mentions:?}"), || {
            let tasks = task::of_service(&world.node, name);
            let is_told = tasks.iter().any(|task| task.state == state && task.reason.contains(mentions));
            if is_told { Ok(()) } else { Err(format!("{tasks:#?}")) }
        });
    };
    let create = |name: &str, image: &str, flags: &str| {
        world.ok(format!("service create {name} --detach --image {image} {flags}").trim_end());
    };
    // For good.
    create("absent", &format!("{host}/shop/absent:1"), "");
    why("absent", "REJECTED", "shop/absent:1");
    create("never", &reference, "--pull never");
    why("never", "REJECTED", "never");
    let foreign = Image::busybox("warren.local/x:1").architecture("s390x");
    let foreign = shop.registry.push("shop/foreign", "1", &foreign.oci_archive());
    create("foreign", &foreign, "");
    why("foreign", "REJECTED", "s390x");
    // Not for good: tried again until somebody is there.
    create("nobody", "10.77.0.2:5007/shop/web:1", "");
    why("nobody", "PREPARING", "10.77.0.2:5007");
    // A registry that says nothing any more, in the middle of it all.
    shop.registry.process().pause();
    let world = &shop.world;
    world.ok(&format!("service create stalled --detach --image {reference}"));
    eventually(SOON, "the pull to be told", || {
        let tasks = task::of_service(&world.node, "stalled");
        let told = tasks.iter().any(|task| task.state == "PREPARING" && !task.reason.is_empty());
        if told { Ok(()) } else { Err(format!("{tasks:#?}")) }
    });
    shop.registry.process().resume();
    shop.says("stalled", "here");
    let world = &shop.world;
    world.warren().refused(&["image", "pull", "Not/A:Reference!"], USAGE);
    let said = world.warren().refused(&["image", "pull", &format!("{host}/shop/absent:1")], FAILED);
    assert!(said.contains("shop/absent"), "{said}");
    // Nothing of what failed is kept.
    let images = world.warren().json(&["image", "ls"]).to_string();
    assert!(!images.contains("absent") && !images.contains("foreign"), "{images}");
}

#[test]
fn a_private_registry_is_told_from_one_that_is_not_there() {
    let world = World::with(trusting());
    let address = SocketAddr::new(world.neighbour.address().into(), PORT);
    let registry = Registry::start_private_at(address, |program| world.neighbour.command(program));
    let reference = registry.push("shop/web", "1", &Image::busybox("warren.local/x:1").oci_archive());
    world.ok(&format!("service create web --detach --image {reference}"));
    eventually(SOON, "the refusal", || {
        let tasks = task::of_service(&world.node, "web");
        let refused =
            tasks.iter().any(|task| task.state == "REJECTED" && task.reason.contains("credentials"));
        if refused { Ok(()) } else { Err(format!("{tasks:#?}")) }
    });
}

/// Has the cluster know `user` at the registry.
#[track_caller]
fn log_in(world: &World, registry: &Registry, user: &str, password: &str) {
    let warren = world.warren();
    let mut command =
        warren.command(&["registry", "login", &registry.host(), "-u", user, "--password-stdin"]);
    let given = world.node.scratch().join("given");
    std::fs::write(&given, password).unwrap();
    let status = command.stdin(std::fs::File::open(&given).unwrap()).status().unwrap();
    std::fs::remove_file(&given).unwrap();
    assert!(status.success());
}

#[test]
fn a_private_registry_gives_images_to_whom_the_cluster_knows_there() {
    let world = World::with(trusting());
    let address = SocketAddr::new(world.neighbour.address().into(), PORT);
    let registry = Registry::start_private_at(address, |program| world.neighbour.command(program));
    let image = Image::busybox("warren.local/x:1").entrypoint(["sleep", "1000"]);
    let reference = registry.push("shop/web", "1", &image.oci_archive());
    let create =
        |name: &str| world.ok(&format!("service create {name} --detach --image {reference} --stop-grace 0s"));
    let rejected = |name: &str, words: [&str; 2]| {
        eventually(SOON, "the refusal", || {
            let tasks = task::of_service(&world.node, name);
            let is_it = |task: &task::Task| {
                task.state == "REJECTED" && words.iter().all(|words| task.reason.contains(words))
            };
            if tasks.iter().any(is_it) { Ok(()) } else { Err(format!("{tasks:#?}")) }
        });
    };
    let login = format!("`warren registry login {}`", registry.host());
    create("unknown");
    rejected("unknown", ["needs credentials", &login]);
    log_in(&world, &registry, USER, "wrong");
    create("wrong");
    rejected("wrong", ["user \"anna\"", &login]);
    let said = world.warren().refused(&["image", "pull", &reference], FAILED);
    assert!(said.contains("user \"anna\"") && !said.contains("wrong password"), "{said}");
    log_in(&world, &registry, USER, PASSWORD);
    world.ok(&format!("image pull {reference}"));
    create("known");
    world.serving("known", 1);
}
