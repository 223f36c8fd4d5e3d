# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The report's style sheet: light, dark, narrow and printed; no font, image or script from anywhere."""

from __future__ import annotations

CSS = """
:root{color-scheme:light dark;--page:#f4f5f7;--card:#fff;--line:#dfe3e8;--ink:#1c2430;--soft:#5b6675;--faint:#eef0f3;--accent:#2f5fd0;
--good:#137a48;--good-bg:#e2f4ea;--bad:#b3261e;--bad-bg:#fce8e6;--dim:#6b5a12;--dim-bg:#fbf3d5;
--s0:#3d6fd6;--s1:#cf6d24;--s2:#238a6b;--s3:#9353c2;--s4:#c2456a;--s5:#72811f;--s6:#1f87a8;--s7:#8a6a45}
@media (prefers-color-scheme:dark){:root{--page:#12161c;--card:#1a2029;--line:#2e3744;--ink:#e6eaf0;--soft:#9aa6b5;--faint:#232b36;--accent:#8db0ff;
--good:#6fd6a0;--good-bg:#16382a;--bad:#ff9c94;--bad-bg:#43201e;--dim:#e6cf7a;--dim-bg:#3a3216;
--s0:#6f9cf5;--s1:#eb9550;--s2:#4fc09b;--s3:#bd8ae6;--s4:#e87b9b;--s5:#aebb52;--s6:#55b8d8;--s7:#c2a07a}}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans",sans-serif}
main{max-width:1080px;margin:0 auto;padding:28px 20px 60px}
header{display:flex;flex-wrap:wrap;gap:6px 18px;align-items:center;justify-content:space-between;margin-bottom:18px}
h1{font-size:25px;line-height:1.25;margin:0;letter-spacing:-.01em;overflow-wrap:anywhere}
h2{font-size:17px;margin:0 0 12px}
p{margin:0 0 10px}
.sub{color:var(--soft);margin:2px 0 0}
section{background:var(--card);border:1px solid var(--line);border-radius:12px;padding:18px 20px;margin:0 0 16px}
.pill{display:inline-block;border-radius:99px;padding:5px 14px;font-weight:600;font-size:14px;white-space:nowrap}
.ok{color:var(--good);background:var(--good-bg)}.fail{color:var(--bad);background:var(--bad-bg)}.unseen{color:var(--dim);background:var(--dim-bg)}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:12px;margin-bottom:16px}
.tile{background:var(--card);border:1px solid var(--line);border-radius:12px;padding:12px 16px}
.tile b{display:block;white-space:nowrap;font-size:23px;line-height:1.25;font-variant-numeric:tabular-nums;letter-spacing:-.01em}
.tile b small{font-size:13px;font-weight:500;color:var(--soft)}
.tile span{color:var(--soft);font-size:13px}
.ribbon{display:flex;gap:3px;margin:2px 0 4px}
.ribbon div{display:flex;gap:1px;min-width:0}
.ribbon i{flex:1;height:26px;background:var(--c);min-width:1px}
.ribbon div i:first-child{border-radius:5px 0 0 5px}.ribbon div i:last-child{border-radius:0 5px 5px 0}.ribbon div i:only-child{border-radius:5px}
.names{display:flex;gap:3px;margin-bottom:18px;font-size:12.5px;color:var(--soft)}
.names div{min-width:0;overflow:hidden;text-overflow:ellipsis;white-space:nowrap}
.names b{color:var(--ink)}
.machines{display:grid;grid-template-columns:repeat(auto-fit,minmax(300px,1fr));gap:14px}
.machine{border:1px solid var(--line);border-radius:10px;padding:12px 14px}
.machine h3{font-size:15px;margin:0;display:flex;justify-content:space-between;gap:8px;flex-wrap:wrap}
.machine h3 small{font-weight:400;color:var(--soft)}
.device{margin-top:12px}
.device .head{display:flex;justify-content:space-between;gap:8px;font-size:13px;flex-wrap:wrap}
.device .head b{font-size:14px}
.dot{display:inline-block;width:10px;height:10px;border-radius:3px;background:var(--c);margin-right:7px}
.bar{display:flex;height:20px;border-radius:5px;overflow:hidden;background:var(--faint);margin:5px 0 4px}
.bar i{height:100%;min-width:0}
.w{background:var(--c)}.k{background:var(--c);opacity:.5}
.u{background:repeating-linear-gradient(135deg,var(--c) 0 2px,transparent 2px 7px);opacity:.45}.r{background:var(--soft);opacity:.55}
.device .foot{font-size:12.5px;color:var(--soft)}
.legend{display:flex;flex-wrap:wrap;gap:4px 18px;font-size:12.5px;color:var(--soft);margin:14px 0 0}
.legend i{display:inline-block;width:16px;height:10px;border-radius:3px;margin-right:6px;--c:var(--s0)}
.legend .f{background:var(--faint);border:1px solid var(--line)}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:14px;font-variant-numeric:tabular-nums}
th{text-align:left;font-weight:600;color:var(--soft);font-size:12.5px;white-space:nowrap;vertical-align:bottom}
th,td{padding:6px 14px 6px 0;border-bottom:1px solid var(--line)}td{vertical-align:top}tr:last-child td{border-bottom:0}
td.n,th.n{text-align:right;white-space:nowrap}
td.one{white-space:nowrap}td.note{color:var(--soft);font-size:13px}
tr.chosen td{font-weight:600}
.badge{border-radius:99px;padding:1px 9px;font-size:12.5px;font-weight:600;white-space:nowrap}
td .why{display:block;color:var(--soft);font-size:12.5px}td .why.fail{background:none;color:var(--bad)}
pre{background:var(--faint);border-radius:8px;padding:12px 14px;overflow-x:auto;margin:8px 0 12px;
font:13px/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
code{font:13px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;overflow-wrap:anywhere}
details summary{cursor:pointer;color:var(--accent)}
ul{margin:8px 0 0;padding-left:20px}
@media (max-width:640px){main{padding:16px 12px 40px}section{padding:14px}h1{font-size:21px}
.stack thead{display:none}.stack tr{display:block;padding:9px 0;border-bottom:1px solid var(--line)}.stack tr:last-child{border:0}
.stack td{display:inline-block;border:0;padding:1px 8px 1px 0}.stack td:nth-child(n+4){display:block}
.stack td:nth-child(4):before{content:"expected ";color:var(--soft)}
.names{display:block}.names div{white-space:normal;flex:none!important}}
@media print{:root{--page:#fff;--card:#fff;--faint:#f2f2f2}body{font-size:11px}main{max-width:none;padding:0}
section,.tile,.machine,tr{break-inside:avoid}
section{border-color:#bbb}*{print-color-adjust:exact;-webkit-print-color-adjust:exact}}
""".strip()
