"""How the page looks: on a desk, on a phone, on paper; by day and by night."""

from __future__ import annotations

from seqgc.report._colours import custom_properties

__all__ = ["style_sheet"]

_RULES = """
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%;color-scheme:light dark}
body{margin:0;background:var(--page);color:var(--ink);font:16px/1.5 system-ui,-apple-system,
"Segoe UI",Roboto,"Noto Sans","Liberation Sans",sans-serif;overflow-wrap:anywhere}
main,header,footer{max-width:74rem;margin:0 auto;padding:0 1.25rem}
header{padding-top:2rem}
h1{font-size:1.7rem;line-height:1.2;margin:.1rem 0 .4rem;letter-spacing:-.01em}
h2{font-size:1.2rem;margin:2.2rem 0 .8rem}
h3{font-size:1rem;margin:0 0 .6rem}
p{margin:.3rem 0;max-width:46rem}
.kind{color:var(--accent);font-size:.8rem;font-weight:600;letter-spacing:.07em;
text-transform:uppercase;margin:0}
.muted,figcaption,footer{color:var(--muted)}
.notices{margin:1rem 0 0;padding:.6rem 1rem .6rem 2rem;border-left:4px solid var(--notice);
background:var(--card);color:var(--ink);border-radius:0 8px 8px 0;max-width:60rem}
.notices::before{content:"To know";display:block;margin-left:-1rem;color:var(--notice);
font-size:.8rem;font-weight:600}
.glance{display:grid;grid-template-columns:repeat(auto-fill,minmax(10.5rem,1fr));gap:.75rem;
margin:1.4rem 0 0}
.glance>div{background:var(--card);border:1px solid var(--line);border-radius:10px;
padding:.7rem .9rem}
dt{color:var(--muted);font-size:.85rem}
dd{margin:0}
.glance dd{font-size:1.35rem;font-weight:600;line-height:1.25;font-variant-numeric:tabular-nums}
.glance div.words{grid-column:span 2}
.glance div.words dd{font-size:1.05rem;padding-top:.2rem}
.glance small{display:block;font-size:.8rem;font-weight:400;color:var(--muted);line-height:1.35}
.pictures{display:grid;grid-template-columns:repeat(2,minmax(0,1fr));gap:1rem}
figure{margin:0;background:var(--card);border:1px solid var(--line);border-radius:10px;
padding:1rem 1.1rem;min-width:0}
figure.wide{grid-column:1/-1}
figcaption{font-size:.9rem;margin:.5rem 0 0;max-width:46rem}
svg{display:block;width:100%;height:auto;overflow:visible}
svg *{stroke-linejoin:round;stroke-linecap:butt}
svg text{font-family:system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans","Liberation Sans",
sans-serif;fill:var(--ink)}
svg image{image-rendering:pixelated}
details{margin-top:.6rem;font-size:.85rem}
summary{cursor:pointer;color:var(--accent)}
.scroll{overflow-x:auto;max-height:26rem;overflow-y:auto;margin-top:.5rem}
.scroll:focus-visible,summary:focus-visible{outline:2px solid var(--accent);outline-offset:2px}
table{border-collapse:collapse;font-size:.85rem;font-variant-numeric:tabular-nums;min-width:60%}
th,td{padding:.25rem .7rem .25rem 0;text-align:left;border-bottom:1px solid var(--line);
vertical-align:top;overflow-wrap:normal}
th{color:var(--muted);font-weight:600}
td.number,td.short{white-space:nowrap}
.number{text-align:right}
.facts{display:grid;grid-template-columns:max-content minmax(0,1fr);gap:.2rem 1.2rem;margin:0;
font-size:.95rem}
.card{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:1rem 1.1rem}
section>.card{margin-top:1rem}
footer{padding-top:2rem;padding-bottom:2rem;font-size:.85rem}
@media (max-width:48rem){
.pictures{grid-template-columns:minmax(0,1fr)}
main,header,footer{padding-left:.9rem;padding-right:.9rem}
header{padding-top:1.2rem}
h1{font-size:1.35rem}
figure{padding:.8rem .7rem}
.glance{grid-template-columns:repeat(2,minmax(0,1fr));gap:.5rem}
.glance dd{font-size:1.15rem}
figure.wide .drawing{overflow-x:auto}
figure.wide svg{min-width:42rem}
.facts{grid-template-columns:minmax(0,1fr);gap:0}
.facts dd{margin-bottom:.5rem}
}
@media print{
@page{margin:14mm}
html{color-scheme:light}
body{font-size:10.5pt;background:#fff}
main,header,footer{max-width:none;padding:0}
figure,.card,.glance>div{break-inside:avoid}
h2{break-after:avoid}
details:not([open]){display:none}
.scroll{overflow:visible;max-height:none}
.glance{grid-template-columns:repeat(4,minmax(0,1fr))}
.pictures{grid-template-columns:repeat(2,minmax(0,1fr))}
}
"""


def style_sheet() -> str:
    """Return the page's style sheet; paper is always light."""
    light, dark = custom_properties("light"), custom_properties("dark")
    return (
        f":root{{{light}}}@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}{_RULES}"
    )
