"use strict";
for (const bar of document.querySelectorAll(".ma-filters")) {
  const view = bar.parentElement, selects = [...bar.querySelectorAll("select")], count = bar.querySelector("output");
  const arms = [...view.querySelectorAll(".ma-arm")], questions = [...view.querySelectorAll(".ma-question")];
  const apply = () => {
    const wanted = selects.filter(s => s.value).map(s => [s.dataset.by, s.value]);
    let shown = 0;
    for (const arm of arms) {
      arm.hidden = !wanted.every(([by, value]) => arm.dataset[by].split(" ").includes(value));
      shown += !arm.hidden;
    }
    for (const q of questions) q.hidden = !q.querySelector(".ma-arm:not([hidden])");
    count.textContent = `${shown} of ${arms.length} trajectories`;
  };
  bar.addEventListener("change", apply);
  bar.hidden = false;
  apply();
}
