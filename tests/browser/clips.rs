//! A finished video in a page of another site.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::thread;

use crate::gate::Gate;
use crate::page::Page;

/// A site whose every page is empty and has no policy. It ends with the process.
fn site() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let origin = format!("http://{}", listener.local_addr().expect("bound"));
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            thread::spawn(move || {
                let text = "<!doctype html><title>A site</title>";
                let head = "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nConnection: close\r\n";
                if stream.read(&mut [0; 8_192]).unwrap_or_default() > 0 {
                    let length = text.len();
                    write!(stream, "{head}Content-Length: {length}\r\n\r\n{text}").ok();
                }
            });
        }
    });
    origin
}

mod long {
    use super::*;

    #[test]
    fn listed_site_plays_a_clip_if_its_browser_sends_the_origin() {
        let origin = site();
        let gate =
            Gate::start_with(&[("TOLLGATE_ACCESS__ALLOWED_ORIGINS", &format!("[\"{origin}\"]"))]);
        let mut page = Page::new(&origin);
        page.allow(&gate.origin);
        // The clip without an Origin.
        page.expect_errors(&["status of 403", "ResponseWasBlockedByORB"]);
        page.goto(&format!("{origin}/"));
        let played = page.evaluate(&format!(
            "(async () => {{
                const {{ createClient }} = await import('{0}/bff/client.js');
                const {{ video }} = createClient();
                const order = {{ prompt: 'A lighthouse', model: 'video-c-2', duration: 6 }};
                const {{ requestId }} = await video.create(order);
                for await (const {{ state }} of video.watch(requestId)) if (state !== 'open') break;
                const play = (crossOrigin) => new Promise((done) => {{
                    const clip = Object.assign(document.createElement('video'), {{ crossOrigin, muted: true }});
                    clip.onloadeddata = () => done('plays');
                    clip.onerror = () => done('refused');
                    clip.src = `{0}/bff/video/content?request_id=${{requestId}}`;
                    document.body.append(clip);
                }});
                return [await play(null), await play('anonymous')].join();
            }})()",
            gate.origin
        ));
        assert_eq!(played, "refused,plays");
    }
}
