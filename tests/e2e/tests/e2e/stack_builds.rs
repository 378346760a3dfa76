//! Stacks whose images are built, and whose files are beside the Compose file.

use std::fs;
use std::path::Path;

use warren_testkit::image::{ImageLayer, TestImage};
use warren_testkit::{scratch, tool};

use crate::e2e::stacks::Project;

const FAILED: i32 = 1;
const USAGE: i32 = 2;

/// Programs that stand in for docker: `build` notes its arguments, `save` has an archive for each version in the
/// context of the last build.
const BUILDER: &str = "#!/bin/sh
cd ${0%/*}
echo \"$*\" >> calls
case $1 in
build) for context; do :; done; cat $context/version > version; cat > dockerfile;;
save) cat $(cat version).tar;;
esac
";

const BUILT: &str = "
x-fast: &fast {deploy: {update_config: {monitor: 0s}}, volumes: ['./pages:/www']}
services:
  web:
    <<: *fast
    build: {context: web, dockerfile_inline: FROM base, args: {LEVEL: 2}}
    ports: ['8088:80']
    depends_on: {set-up: {condition: service_completed_successfully, restart: true}}
  set-up:
    <<: *fast
    image: warren.local/box:1
    command: [sh, -c, 'test ! -e /www/fail || { echo no table; exit 3; }; echo $$TEXT > /www/index.html']
    environment: {TEXT: 'set up'}
";

/// What a user of `docker compose` has: a service that is built, directories beside the file, a service that sets them
/// up first.
#[test]
fn service_is_built_and_runs_where_its_files_are() {
    let it = Project::new();
    let name = "localhost/shop_web:latest";
    for version in ["one", "two"] {
        let note = ImageLayer::new().file("/version", version, 0o644);
        let image = TestImage::busybox(name).layer(note).entrypoint(["httpd", "-f", "-h", "/www"]);
        image.docker_archive().write(Path::new(&it.path(&format!("{version}.tar")))).unwrap();
    }
    scratch::install(Path::new(&it.path("docker")), BUILDER.as_bytes());
    fs::create_dir(it.path("web")).unwrap();
    it.write("web/version", "one");
    let file = it.write("compose.yaml", BUILT);
    let deploy = |flags: &[&str], code: i32| {
        let mut command = it.world.warren().command(&[&["deploy", "-c", &file, "shop"], flags].concat());
        command.env("PATH", format!("{}:/usr/bin:/bin", it.world.node.scratch().display()));
        command.env("WARREN_DATA_DIR", it.world.node.data_dir());
        let ran = tool::output(command, 4 * tool::DEADLINE).unwrap();
        let told = String::from_utf8_lossy(&ran.stderr).into_owned();
        assert_eq!(ran.status.code(), Some(code), "{told}");
        told
    };
    let told = deploy(&[], USAGE);
    assert!(
        told.contains("compose.yaml:6:12: services.web.build: the image is not built yet: give --build"),
        "{told}"
    );
    assert_eq!(it.names("service"), [""; 0]);

    // A service that must complete fails, and its dependent is not created.
    fs::create_dir(it.path("pages")).unwrap();
    it.write("pages/fail", "");
    let told = deploy(&["--build"], FAILED);
    assert!(told.contains("service shop_set-up did not complete") && told.contains("no table"), "{told}");
    assert_eq!(it.names("service"), ["shop_set-up"]);
    fs::remove_file(it.path("pages/fail")).unwrap();
    deploy(&["--build"], 0);
    assert_eq!(it.page(), "set up\n");
    let calls = fs::read_to_string(it.path("calls")).unwrap();
    let build = format!("build --build-arg=LEVEL=2 --tag={name} --file=- {}\nsave {name}\n", it.path("web"));
    assert_eq!(calls, build.repeat(2));
    assert_eq!(fs::read_to_string(it.path("dockerfile")).unwrap(), "FROM base");
    assert_eq!(it.world.ok("service exec shop_web cat /version"), "one");

    // Without a change, also of what is built, nothing is replaced.
    let first = it.world.wait_serving("shop_web", 1);
    for flags in [&["--build"][..], &[]] {
        assert!(deploy(flags, 0).contains("service shop_web is unchanged"));
    }
    assert_eq!(it.world.wait_serving("shop_web", 1), first);
    it.write("web/version", "two");
    deploy(&["--build"], 0);
    let second = it.world.wait_serving("shop_web", 1);
    assert_eq!(it.world.ok("service exec shop_web cat /version"), "two");

    // A change of what it depends on restarts it.
    it.write("compose.yaml", &BUILT.replace("'set up'", "again"));
    let told = deploy(&[], 0);
    assert!(told.contains("service shop_web is restarted after shop_set-up"), "{told}");
    assert_eq!(it.page(), "again\n");
    assert_ne!(it.world.wait_serving("shop_web", 1)[0].id, second[0].id);
    it.world.ok("stack rm shop");
}
