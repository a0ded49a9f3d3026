//! A full disk under the store.

use super::*;

#[test]
fn corrupt_store_on_a_full_disk_is_refused_and_kept() {
    with_agent(|node| {
        let (a, b) = (node.attach("a")?, node.attach("b")?);
        let traffic = Traffic::begin(&a, &b)?;
        node.stop_agent()?;
        // A page for the record, and one for the agent's lock.
        fs::create_dir_all("/run/full")?;
        sys::run("mount -t tmpfs -o size=8192 tmpfs /run/full")?;
        fs::create_dir("/run/full/attachments")?;
        fs::write("/run/full/attachments/cluster:0123:eth0", "no record")?;
        let error = node
            .start_agent_with(&[
                "--standalone",
                "--pod-cidr",
                POD_V4,
                "--pod-cidr",
                POD_V6,
                "--state-dir",
                "/run/full",
            ])
            .map_or_else(|error| format!("{error:#}"), |()| "the agent started".to_owned());
        ensure!(error.contains("is damaged") && error.contains("it is left as it is"), "{error}");
        let left: Vec<_> = fs::read_dir("/run/full/attachments")?
            .map(|it| it.map(|it| it.file_name()))
            .collect::<Result<_, _>>()?;
        ensure!(left == ["cluster:0123:eth0"], "{left:?}");
        ensure!(fs::read_to_string("/run/full/attachments/cluster:0123:eth0")? == "no record");
        traffic.end()?;
        node.start_agent(&[POD_V4, POD_V6])?;
        lives_on(node, &a, &b)
    })
    .unwrap();
}

#[test]
fn agent_recovers_when_its_full_disk_has_space_again() {
    with_agent(|node| {
        let (a, b) = (node.attach("a")?, node.attach("b")?);
        let traffic = Traffic::begin(&a, &b)?;
        node.stop_agent()?;
        fs::create_dir_all("/run/small")?;
        sys::run("mount -t tmpfs -o size=256k tmpfs /run/small")?;
        sys::run(&format!("cp -r {STORE} /run/small/"))?;
        node.start_again_with(&["--state-dir", "/run/small"])?;
        let runtime = node.runtime()?;
        let clean = node.kernel_state()?;
        let before = fs::read_dir("/run/small/attachments")?.count();
        // Fill the disk; the file grows until space runs out.
        let _ = fs::write("/run/small/others", vec![1; 4 << 20]);
        let pod = node.pod("more")?;
        for _ in 0..3 {
            let error = runtime.call("ADD", &pod)?.into_error()?;
            let (code, text) = (error.code, error.to_string());
            ensure!(code == 11 && text.contains("attachments") && text.contains("No space left"), "{error}");
            ensure!(fs::read_dir("/run/small/attachments")?.count() == before, "a file is left");
            ensure!(node.kernel_state()? == clean, "{:#?}", node.kernel_state()?);
        }
        ensure!(node.http("/readyz")?.0 == 503);
        fs::remove_file("/run/small/others")?;
        sys::wait_until("the agent is ready again", LIMIT, || Ok(node.http("/readyz")?.0 == 200))?;
        // No address has leaked: the next one is the first that the full disk refused.
        let mut more = pod.clone();
        more.attached(&runtime.add(&pod)?)?;
        ensure!(
            more.addresses.first().is_some_and(|it| it.to_string() == "10.244.0.4"),
            "{:?}",
            more.addresses
        );
        runtime.del(&pod)?;
        sys::wait_until("the pod's kernel state is removed", LIMIT, || Ok(node.kernel_state()? == clean))?;
        lives_on(node, &a, &b)?;
        traffic.end()
    })
    .unwrap();
}
