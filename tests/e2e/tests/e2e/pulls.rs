//! Images from a registry on another host: pulled once, pinned to a digest, listed, removed; and every way to
//! fail.

use std::net::SocketAddr;

use warren_testkit::image::{ImageLayer, TestImage};
use warren_testkit::node::NodeOptions;
use warren_testkit::registry::{PASSWORD, TestRegistry, USER};
use warren_testkit::token_registry::{BASIC, TokenRegistry};
use warren_testkit::wait::eventually;

use crate::e2e::fixture::{NodeFixture, SOON};
use crate::e2e::task_document;

const FAILED: i32 = 1;
const USAGE: i32 = 2;
const PORT: u16 = 5000;
const TOKEN_PORT: u16 = 5001;
/// No process listens there.
const CLOSED_PORT: u16 = 5007;

/// A node that trusts the registry of the host beside it, and that registry.
struct RegistryFixture {
    registry: TestRegistry,
    world: NodeFixture,
}

/// The first host of a lab is the node's, the second the registry's.
fn trusting() -> NodeOptions {
    let hosts = [PORT, TOKEN_PORT, CLOSED_PORT].map(|port| format!("10.77.0.2:{port}")).join(",");
    NodeOptions::default().argument("--insecure-registry").argument(&hosts)
}

impl RegistryFixture {
    fn start() -> RegistryFixture {
        let world = NodeFixture::bare(trusting());
        let address = SocketAddr::new(world.client_host.address().into(), PORT);
        let registry = TestRegistry::start_at(address, |program| world.client_host.command(program));
        RegistryFixture { registry, world }
    }

    fn push(&self, name: &str, text: &str) -> String {
        let image = TestImage::busybox("warren.local/x:1").entrypoint(["sh", "-c"]);
        let image = image.arguments([format!("echo {text}; trap exit TERM; sleep 1000 & wait")]);
        let image = image.layer(ImageLayer::new().file("/ballast", vec![7; 200_000], 0o644));
        self.registry.push(name, "1", &image.oci_archive())
    }

    fn wait_for_output(&self, service: &str, expected: &str) {
        let task = self.world.wait_serving(service, 1).remove(0);
        eventually(SOON, &format!("the output {expected:?} of {service}"), || {
            let text = task_document::output(&self.world.node, &task);
            if text.trim_end() == expected { Ok(()) } else { Err(text) }
        });
    }
}

#[test]
fn an_image_is_pulled_listed_pruned_and_pulled_again() {
    let shop = RegistryFixture::start();
    let (world, reference) = (&shop.world, shop.push("shop/web", "one"));
    world.ok(&format!("service create web --image {reference}"));
    shop.wait_for_output("web", "one");
    let images = || world.warren().json(&["image", "ls"]).to_string();
    assert!(images().contains(&reference), "{}", images());
    // The tag moves; managers ask the registry, a node uses the local image, unless the registry must be asked.
    shop.push("shop/web", "two");
    world.ok(&format!("service create current --image {reference}"));
    shop.wait_for_output("current", "two");
    world.ok(&format!("service create same --image {reference} --resolve-image worker"));
    shop.wait_for_output("same", "one");
    let shown = world.warren().json(&["service", "inspect", "same"]).to_string();
    assert!(shown.contains(r#""resolveImage":"worker""#), "{shown}");
    world.ok(&format!("service create newer --image {reference} --pull always"));
    shop.wait_for_output("newer", "two");
    world.ok("service update web --force --pull always");
    shop.wait_for_output("web", "two");
    // Used images stay, unused ones go.
    let other = shop.push("shop/other", "other");
    world.ok(&format!("image pull {other}"));
    assert!(images().contains(&other), "{}", images());
    world.ok("image prune --force");
    assert!(!images().contains(&other) && images().contains(&reference), "{}", images());
    world.ok("service rm web current same newer");
    eventually(SOON, "the image to be unused", || {
        world.ok("image prune --force");
        if images().contains(&reference) { Err(images()) } else { Ok(()) }
    });
    world.ok(&format!("service create web --image {reference}"));
    shop.wait_for_output("web", "two");
}

#[test]
fn failed_pull_shows_reason_and_is_retried() {
    let mut shop = RegistryFixture::start();
    let reference = shop.push("shop/web", "here");
    let host = shop.registry.host();
    let world = &shop.world;
    let why = |name: &str, state: &str, mentions: &str| {
        eventually(SOON, &format!("{name} to be {state} and to mention {mentions:?}"), || {
            let tasks = task_document::of_service(&world.node, name);
            let is_told = tasks.iter().any(|task| task.state == state && task.reason.contains(mentions));
            if is_told { Ok(()) } else { Err(format!("{tasks:#?}")) }
        });
    };
    let create = |name: &str, image: &str, flags: &str| {
        world.ok(format!("service create {name} --detach --image {image} {flags}").trim_end());
    };
    // Permanent errors.
    create("absent", &format!("{host}/shop/absent:1"), "");
    why("absent", "REJECTED", "shop/absent:1");
    create("never", &reference, "--pull never");
    why("never", "REJECTED", "never");
    let foreign = TestImage::busybox("warren.local/x:1").architecture("s390x");
    let foreign = shop.registry.push("shop/foreign", "1", &foreign.oci_archive());
    create("foreign", &foreign, "");
    why("foreign", "REJECTED", "s390x");
    // Tasks that run stay until managers know the next image.
    world.ok(&format!("service create kept --image {reference}"));
    world.ok(&format!("service update kept --detach --image {host}/shop/absent:1"));
    eventually(SOON, "the reason of the update", || {
        let shown = world.warren().json(&["service", "inspect", "kept"]).to_string();
        if shown.contains("has no image shop/absent:1") { Ok(()) } else { Err(shown) }
    });
    world.wait_serving("kept", 1);
    // Temporary errors: retried until the registry answers.
    create("nobody", "10.77.0.2:5007/shop/web:1", "");
    why("nobody", "PREPARING", "10.77.0.2:5007");
    // A registry that stops answering in the middle of a pull.
    shop.registry.process().pause();
    let world = &shop.world;
    world.ok(&format!("service create stalled --detach --image {reference}"));
    eventually(SOON, "the pull to be told", || {
        let tasks = task_document::of_service(&world.node, "stalled");
        let reported = tasks.iter().any(|task| task.state == "PREPARING" && !task.reason.is_empty());
        if reported { Ok(()) } else { Err(format!("{tasks:#?}")) }
    });
    shop.registry.process().resume();
    shop.wait_for_output("stalled", "here");
    let world = &shop.world;
    world.warren().run_refused(&["image", "pull", "Not/A:Reference!"], USAGE);
    let output = world.warren().run_refused(&["image", "pull", &format!("{host}/shop/absent:1")], FAILED);
    assert!(output.contains("shop/absent"), "{output}");
    // No data of failed pulls is kept.
    let images = world.warren().json(&["image", "ls"]).to_string();
    assert!(!images.contains("absent") && !images.contains("foreign"), "{images}");
}

/// Stores a credential of `user` for the registry.
#[track_caller]
fn log_in(world: &NodeFixture, registry: &str, user: &str, password: &str, flags: &[&str]) {
    let warren = world.warren();
    let login = ["registry", "login", registry, "-u", user, "--password-stdin"];
    let mut command = warren.command(&[&login[..], flags].concat());
    let given = world.node.scratch().join("given");
    std::fs::write(&given, password).unwrap();
    let status = command.stdin(std::fs::File::open(&given).unwrap()).status().unwrap();
    std::fs::remove_file(&given).unwrap();
    assert!(status.success());
}

#[test]
fn stored_credential_pulls_from_private_registry() {
    let world = NodeFixture::bare(trusting());
    let address = SocketAddr::new(world.client_host.address().into(), PORT);
    let registry = TestRegistry::start_private_at(address, |program| world.client_host.command(program));
    let image = TestImage::busybox("warren.local/x:1").entrypoint(["sleep", "1000"]);
    let reference = registry.push("shop/web", "1", &image.oci_archive());
    let create =
        |name: &str| world.ok(&format!("service create {name} --detach --image {reference} --stop-grace 0s"));
    let rejected = |name: &str, words: [&str; 2]| {
        eventually(SOON, "the refusal", || {
            let tasks = task_document::of_service(&world.node, name);
            let is_it = |task: &task_document::TaskDocument| {
                task.state == "REJECTED" && words.iter().all(|words| task.reason.contains(words))
            };
            if tasks.iter().any(is_it) { Ok(()) } else { Err(format!("{tasks:#?}")) }
        });
    };
    let login = format!("`warren registry login {}`", registry.host());
    create("unknown");
    rejected("unknown", ["needs credentials", &login]);
    log_in(&world, &registry.host(), USER, "wrong", &[]);
    create("wrong");
    rejected("wrong", ["user \"anna\"", &login]);
    let output = world.warren().run_refused(&["image", "pull", &reference], FAILED);
    assert!(output.contains("user \"anna\"") && !output.contains("wrong password"), "{output}");
    // This registry has no tokens.
    log_in(&world, &registry.host(), USER, PASSWORD, &["--token-only"]);
    create("strict");
    rejected("strict", ["has no tokens for single repositories", &login]);
    let output = world.warren().run_refused(&["image", "pull", &reference], FAILED);
    assert!(output.contains("has no tokens for single repositories"), "{output}");
    let check = || world.warren().json(&["cluster", "check-security"]).to_string();
    assert!(!check().contains(&registry.host()), "{}", check());
    log_in(&world, &registry.host(), USER, PASSWORD, &[]);
    let weak = format!("{} (anna)", registry.host());
    assert!(check().contains(&weak), "{}", check());
    world.ok(&format!("image pull {reference}"));
    create("known");
    world.wait_serving("known", 1);
}

/// The manager proves who pulls, and the node only that it may.
#[test]
fn node_pulls_with_a_token_of_the_repository() {
    let world = NodeFixture::bare(trusting());
    let at = |port| SocketAddr::new(world.client_host.address().into(), port);
    let images = TestRegistry::start_at(at(PORT), |program| world.client_host.command(program));
    let namespace = world.client_host.netns().path();
    let registry = TokenRegistry::start(at(TOKEN_PORT), Some(&namespace), Some(&images));
    let image = TestImage::busybox("warren.local/x:1").entrypoint(["sleep", "1000"]);
    images.push("shop/web", "1", &image.oci_archive());
    let host = registry.host();
    log_in(&world, &host, USER, PASSWORD, &["--token-only"]);
    world.ok(&format!("service create web --image {host}/shop/web:1 --resolve-image worker --stop-grace 0s"));
    world.wait_serving("web", 1);
    let requests = registry.requests();
    let with = |proof: Option<&str>| {
        let asked = requests.iter().filter(|request| request.authorization.as_deref() == proof);
        asked.map(|request| format!("{} {}", request.method, request.target)).collect::<Vec<_>>()
    };
    assert_eq!(with(None), ["HEAD /v2/shop/web/manifests/1"], "the manager asks what is demanded");
    assert_eq!(with(Some(BASIC)), ["GET /token?service=test&scope=repository%3Ashop%2Fweb%3Apull"]);
    let pulled = with(Some("Bearer token-1"));
    assert_eq!(pulled.len() + 2, requests.len(), "{requests:?}");
    assert!(pulled.iter().any(|request| request.starts_with("GET /v2/shop/web/blobs/")), "{pulled:?}");
}
