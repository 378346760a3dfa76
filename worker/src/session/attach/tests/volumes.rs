use warren_types::{TaskAssignment, VolumeAssignment};
use warren_volume::Driver;

use super::*;

fn purge() -> Purpose {
    Purpose::PurgeVolume(v1::PurgeVolume { name: "data".into() })
}

#[tokio::test(start_paused = true)]
async fn volumes_are_listed_and_deleted_over_streams() {
    let mut wishes = wishing(&[1, 2]);
    let used = VolumeAssignment { name: "data".parse().unwrap(), options: Default::default() };
    wishes.tasks.insert(task_id(1), Arc::new(TaskAssignment { volumes: vec![used.clone()], ..task(1) }));
    let (node, mut manager) = Node::start(wishes);
    let mut session = manager.welcomed().await;
    for name in ["data", "other"] {
        node.volumes.ensure(&name.parse().unwrap(), &Default::default(), None).await.unwrap();
    }
    let list = Purpose::ListVolumes(v1::ListVolumes { names: Vec::new() });
    let mut stream = attached(&mut manager, &session, list).await;
    let said = hear_all(&mut stream, &mut session).await;
    let name = |frame: &Frame| match frame {
        Frame::Volumes(list) => list.volumes[0].name.clone(),
        other => panic!("{other:?}"),
    };
    assert_eq!((name(&said[0]), name(&said[1]), &said[2..]), ("data".into(), "other".into(), &[DONE][..]));

    let mut stream = attached(&mut manager, &session, purge()).await;
    let said = hear_all(&mut stream, &mut session).await;
    assert!(matches!(&said[..], [Frame::Failed(why)] if why.contains("still used on this node")), "{said:?}");
    assert!(node.volumes.path(&used.name).exists());
    node.context.wishes.send_modify(|wishes| drop(wishes.tasks.remove(&task_id(1))));
    for _twice in 0..2 {
        let mut stream = attached(&mut manager, &session, purge()).await;
        assert_eq!(hear_all(&mut stream, &mut session).await, [DONE]);
        assert!(!node.volumes.path(&used.name).exists());
    }
}
